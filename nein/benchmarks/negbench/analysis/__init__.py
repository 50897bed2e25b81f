"""How text encoders place affirmed and negated templates: numbers beside the pictures of the paper."""
