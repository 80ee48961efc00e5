"""The ledger of time: each instant of a client process, broker or connection has one owner, or is unknown.

`time_ledger(tables)` has the intervals, `kdissect.analysis.budget.time_budget` their sums. Rules of who owns what stand
in `exchange_spans`, `silent_spans` and `throttle_windows`; `time_owners` has their order.
"""
