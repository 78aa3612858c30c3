-- name: insert_run
INSERT INTO runs (
    run_id, flow_id, flow_type, request_id, first_run_id, run_attempt, started_at, status,
    sequence, event_count, message_count, execution_count, counters, closing, sticky_worker
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, 0, 0, 0, 0, '{}', 0, '')

-- name: insert_details
INSERT INTO run_details (run_key, start_request, config, result) VALUES (?, ?, ?, x'')

-- name: update_run
UPDATE runs SET
    status = ?, closed_at = ?, deadline_at = ?, sequence = ?, event_count = ?, message_count = ?,
    execution_count = ?, counters = ?, closing = ?, sticky_worker = ?
WHERE run_key = ?

-- name: update_result
UPDATE run_details SET result = ? WHERE run_key = ?

-- name: select_run
SELECT
    run_key, run_id, flow_id, flow_type, request_id, first_run_id, run_attempt, started_at, status,
    closed_at, deadline_at, sequence, event_count, message_count, execution_count, counters,
    closing, sticky_worker, start_request, config, result
FROM runs JOIN run_details USING (run_key)
WHERE run_key = ?

-- name: latest_key
SELECT run_key FROM runs WHERE flow_id = ? ORDER BY run_key DESC LIMIT 1

-- name: key_of_run
SELECT run_key FROM runs WHERE flow_id = ? AND run_id = ?

-- name: keys_with_work
SELECT DISTINCT run_key FROM executions WHERE standing IN (1, 2)

-- name: wakes
SELECT run_key, min(deadline_at) FROM runs WHERE status = 1 AND deadline_at IS NOT NULL
GROUP BY run_key
UNION ALL
SELECT run_key, min(wake_at) FROM executions WHERE wake_at IS NOT NULL GROUP BY run_key

-- name: put_execution
INSERT OR REPLACE INTO executions (
    run_key, ordinal, step_type, number, phase, standing, wake_at, origin_event, origin_index,
    attempt, first_attempt_at, ready_at, queued_for, snapshot, movement, heartbeat, last_failure,
    condition, timers, results, step_locals
) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: drop_execution
DELETE FROM executions WHERE run_key = ? AND ordinal = ?

-- name: set_heartbeat
UPDATE executions SET heartbeat = ? WHERE run_key = ? AND ordinal = ?

-- name: select_executions
SELECT
    ordinal, step_type, number, phase, standing, wake_at, origin_event, origin_index, attempt,
    first_attempt_at, ready_at, queued_for, snapshot, movement, heartbeat, last_failure, condition,
    timers, results, step_locals
FROM executions WHERE run_key = ? ORDER BY ordinal

-- name: insert_message
INSERT INTO messages (run_key, position, channel, message_id, value, created)
VALUES (?, ?, ?, ?, ?, ?)

-- name: hide_message
UPDATE messages SET removed = ? WHERE run_key = ? AND position = ?

-- name: drop_message
DELETE FROM messages WHERE run_key = ? AND position = ?

-- name: select_messages
SELECT position, channel, message_id, value, created, removed
FROM messages WHERE run_key = ? ORDER BY position

-- name: insert_event
INSERT INTO events (run_key, event_id, at, origin_event, origin_index, body)
VALUES (?, ?, ?, ?, ?, ?)

-- name: select_events
SELECT event_id, at, origin_event, origin_index, body FROM events
WHERE run_key = ? AND event_id >= ? ORDER BY event_id LIMIT ?

-- name: select_event
SELECT origin_event, origin_index, body FROM events WHERE run_key = ? AND event_id = ?
