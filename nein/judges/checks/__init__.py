"""The conformance kit behind `nein check`: what an editor, or a judge, must keep to."""
