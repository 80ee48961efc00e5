-- A day of a fleet, for a dashboard: each query is a panel. Views are made by kdissect.spark.views(spark, "tables/"),
-- quantiles are percentile_approx, one of the values.

-- Slowest brokers and APIs, and whose time it was
select hour, cluster, broker, api, exchanges, latency_p99_ms,
       round(100 * broker_sum_ms / latency_sum_ms) as broker_percent,
       round(100 * network_sum_ms / latency_sum_ms) as network_percent,
       round(100 * queued_sum_ms / latency_sum_ms) as queued_percent
from latency_by_part
where latency_sum_ms > 0
order by latency_p99_ms desc
limit 20;

-- Why brokers answered when they did
select date, cluster, broker, api, hold, exchanges, broker_p50_ms, broker_p99_ms
from latency_by_hold
order by broker_p99_ms desc;

-- Fetch sessions that brokers threw out
select hour, cluster, broker, sum(sessions) as sessions, sum(if(end_reason = 'evicted', sessions, 0)) as evicted,
       sum(epoch_gaps) as epoch_gaps
from sessions_by_hour
group by hour, cluster, broker
order by evicted desc;

-- Who lags
select hour, cluster, topic, client_id, partitions, lag_p50, lag_p99, lag_max
from lag_by_hour
where not is_follower
order by lag_max desc
limit 20;

-- Findings of the day, the worst first
select date, cluster, severity, cause, findings, incidents, size(brokers) as brokers, first_at, last_at, first
from findings_by_day
order by array_position(array('high', 'medium', 'low', 'info'), severity), findings desc;
