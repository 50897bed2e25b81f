"""Statistics as functions of arrays: estimates with intervals, tests, agreement, correction of judges."""

from nein.statistics.estimates import Estimate as Estimate
from nein.statistics.estimates import bounded_mean as bounded_mean
from nein.statistics.estimates import difference_of_means as difference_of_means
from nein.statistics.estimates import holm as holm
from nein.statistics.estimates import mean as mean
from nein.statistics.estimates import pairs_ratio as pairs_ratio
from nein.statistics.estimates import pairs_test as pairs_test
