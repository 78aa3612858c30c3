-- name: put_blob
INSERT OR IGNORE INTO blobs (flow_id, blob_id, size, body) VALUES (?, ?, ?, ?)

-- name: read_blob
SELECT body FROM blobs WHERE flow_id = ? AND blob_id = ?

-- name: blob_size
SELECT size FROM blobs WHERE flow_id = ? AND blob_id = ?

-- name: read_meta
SELECT value FROM meta WHERE name = ?

-- name: write_meta
INSERT OR REPLACE INTO meta (name, value) VALUES (?, ?)

-- name: read_indexes
SELECT index_key, index_type FROM attribute_indexes

-- name: put_index
INSERT OR IGNORE INTO attribute_indexes (index_key, index_type) VALUES (?, ?)
