-- name: put
INSERT OR REPLACE INTO attributes (run_key, in_map, key, sequence, value) VALUES (?, ?, ?, ?, ?)

-- name: drop_versions_before
DELETE FROM attributes WHERE run_key = ? AND in_map = ? AND key = ? AND sequence < ?

-- name: drop_version
DELETE FROM attributes WHERE run_key = ? AND in_map = ? AND key = ? AND sequence = ?

-- name: versions
SELECT sequence, value IS NULL FROM attributes
WHERE run_key = ? AND in_map = ? AND key = ? ORDER BY sequence

-- name: read_plain
SELECT key, value FROM attributes
WHERE run_key = ? AND in_map = 0 AND sequence <= ? ORDER BY key, sequence

-- name: read_map
SELECT key, value FROM attributes
WHERE run_key = ? AND in_map = 1 AND key > ? AND key < ? AND sequence <= ? ORDER BY key, sequence

-- name: read_instance
SELECT key, value FROM attributes
WHERE run_key = ? AND in_map = 1 AND key = ? AND sequence <= ? ORDER BY sequence

-- name: read_everything
SELECT key, value FROM attributes WHERE run_key = ? ORDER BY key, sequence

-- name: stale_keys
SELECT key FROM attributes WHERE run_key = ? GROUP BY key HAVING count(*) > 1

-- name: hard_keys
SELECT key FROM hard_values WHERE flow_id = ?

-- name: read_hard
SELECT content FROM hard_values WHERE flow_id = ? AND key = ?

-- name: put_hard
INSERT INTO hard_values (flow_id, key, padding, content) VALUES (?, ?, zeroblob(5000), ?)

-- name: drop_hard
DELETE FROM hard_values WHERE flow_id = ? AND key = ?
