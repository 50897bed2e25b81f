"""`nein.loading.errors`, by a shorter way."""

from nein.loading.errors import Problems, UserError, chosen, near_match, plain, shortlist, spelled, unknown

__all__ = ["Problems", "UserError", "chosen", "near_match", "plain", "shortlist", "spelled", "unknown"]
