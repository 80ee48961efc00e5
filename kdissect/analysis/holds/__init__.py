"""Why a broker answered when it did, and what of its time was not agreed to."""
