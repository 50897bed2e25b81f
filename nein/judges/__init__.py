"""Are the judges right? Calibration on images of known truth; the contract editors and judges keep to."""
