-- name: find_family
SELECT family_key FROM stream_families WHERE flow_type = ? AND stream_name = ?

-- name: add_family
INSERT INTO stream_families (flow_type, stream_name) VALUES (?, ?)

-- name: family_size
SELECT coalesce(sum(size), 0) FROM stream_messages WHERE family_key = ?

-- name: append
INSERT INTO stream_messages (position, family_key, flow_id, at, source, size, value)
VALUES (?, ?, ?, ?, ?, ?, ?)

-- name: next_after
SELECT position, at, source, value FROM stream_messages
WHERE family_key = ? AND flow_id = ? AND position > ? ORDER BY position LIMIT 1

-- name: page_before
SELECT position, at, source, value, size FROM stream_messages
WHERE family_key = ? AND flow_id = ? AND position < ? ORDER BY position DESC LIMIT ?

-- name: is_kept
SELECT 1 FROM stream_messages WHERE family_key = ? AND flow_id = ? AND position = ?

-- name: oldest
SELECT position, size FROM stream_messages WHERE family_key = ? ORDER BY position LIMIT 500

-- name: drop_up_to
DELETE FROM stream_messages WHERE family_key = ? AND position <= ?
