"""Are the judges right? Calibration on pictures of known truth; the contract editors and judges keep to."""
