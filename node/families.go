package node

import "strconv"

// family is one metric; its full name starts with "carillon_".
type family struct {
	name, help string
	labels     []string
}

var (
	perShard  = []string{"shard"}
	perMethod = []string{"method"}
)

func shardLabel(id int) string { return strconv.Itoa(id) }

// families are all metrics of a node.
var families = []family{
	{"build_info", "Always 1; the version and the node ID.", []string{"version", "node"}},
	{"ready", "1 if the node belongs to a cluster and each of its shards has a leader.", nil},
	{"members", "Nodes that the directory lists.", nil},
	{"members_alive", "Nodes that gossip sees, this one included.", nil},
	{"map_version", "Version of members and shard map that this node has applied.", nil},
	{"directory_leader", "1 if this node leads the directory.", nil},
	{"directory_has_leader", "1 if this node knows who leads the directory.", nil},
	{"directory_failed", "1 if this node's replica of the directory has stopped at an entry that it cannot read.", nil},
	{"calls_forwarded_total", "Calls sent on to the node that leads the shard.", nil},
	{"calls_retried_total", "Attempts of calls that were not applied and were made again, at another node or later.", nil},
	{"propose_seconds", "From proposing commands to a shard that this node leads to their result: the disks of a majority and the state.", nil},
	{"loop_turns_total", "Turns of the timer loops.", nil},
	{"loop_sleeps_total", "How often the timer loops went to sleep.", nil},
	{"loop_panics_total", "Callbacks of the timer loops that panicked; each is a defect.", nil},
	{"clock_steps_back_total", "How often the wall clock was seen to run back.", nil},

	{"lateness_seconds", "First deliveries: from due to handed out, the wait for a consumer included.", nil},
	{"wheel_lateness_seconds", "First deliveries: from due to out of the wheel.", nil},
	{"log_append_seconds", "Writes of log entries to the disk, synced.", nil},
	{"log_vote_seconds", "Writes of terms and votes to the disk, synced.", nil},

	{"log_segments", "Segments of the segment log; 0 with another log store, as all that follow.", nil},
	{"log_segment_bytes", "Bytes of the segments of the segment log.", nil},
	{"log_live_bytes", "Bytes of the records in the segment log that are needed.", nil},
	{"log_batches_total", "Writes of the segment log, each with one flush.", nil},
	{"log_records_total", "Records written to the segment log.", nil},
	{"log_moved_records_total", "Records of old segments that were written again so that the segments could go.", nil},
	{"log_written_bytes_total", "Bytes written to the segment log.", nil},
	{"log_damaged", "1 if a part of the segment log is damaged: shards are lost, and old segments stay.", nil},

	{"shard_failed", "1 if the replica has stopped for good and needs a hand.", perShard},
	{"shard_reopened_total", "How often the replica stopped by itself and was opened again.", perShard},
	{"shard_open", "1 if the replica is open.", perShard},
	{"shard_has_leader", "1 if this replica knows who leads.", perShard},
	{"shard_leading", "1 if this node leads the shard.", perShard},
	{"shard_firing", "1 if this node leads the shard, holds its lease and hands out.", perShard},
	{"shard_term", "Raft term.", perShard},
	{"shard_last_index", "Last index of the log.", perShard},
	{"shard_commit_index", "Last index that is known to be committed.", perShard},
	{"shard_applied_index", "Last index that the state has seen.", perShard},
	{"shard_pending_timers", "Timers that are not finished.", perShard},
	{"shard_payload_bytes", "Payload bytes of the pending timers.", perShard},
	{"shard_finished_timers", "Finished timers that are still remembered.", perShard},
	{"shard_remembered_requests", "Request IDs that are still remembered.", perShard},
	{"shard_overdue_timers", "Timers that are due and not handed out (on the leader).", perShard},
	{"shard_ready_timers", "Timers that wait for a consumer (on the leader).", perShard},
	{"shard_out_deliveries", "Deliveries that are handed out and not answered (on the leader).", perShard},
	{"shard_ops_waiting", "Changes that the wheel has not taken in yet.", perShard},
	{"shard_oldest_ready_seconds", "How long the timer that has waited longest for a consumer is overdue.", perShard},
	{"shard_fired_total", "Deliveries handed out.", perShard},
	{"shard_redelivered_total", "Deliveries handed out that were not a timer's first.", perShard},
	{"shard_leases_lapsed_total", "Deliveries that were not answered within their lease.", perShard},
	{"shard_queued_commands", "Commands that wait to be joined into a log entry.", perShard},
	{"shard_queued_bytes", "Bytes of the commands that wait.", perShard},
	{"shard_entries_in_flight", "Log entries that wait for a majority.", perShard},
	{"shard_entries_total", "Log entries proposed.", perShard},
	{"shard_commands_total", "Commands proposed.", perShard},
	{"shard_overloaded_total", "Calls refused because a limit is reached.", perShard},
	{"shard_unknown_total", "Calls whose outcome could not be told.", perShard},
	{"shard_rejected_total", "Commands refused without a log entry (old tokens).", perShard},
	{"shard_log_bytes_total", "Bytes appended to the log.", perShard},
	{"shard_log_write_seconds", "How long the write of the log that is under way has taken; 0 for none.", perShard},
	{"shard_snapshot_index", "Index of the last snapshot.", perShard},
	{"shard_snapshot_bytes", "Size of the last snapshot that this replica took.", perShard},
	{"shard_log_since_snapshot_bytes", "Bytes applied since the last snapshot.", perShard},
	{"shard_snapshot_failures_total", "Snapshots that could not be taken.", perShard},

	{"grpc_running", "Calls that have not ended.", perMethod},
	{"grpc_calls_total", "Calls that have ended, by code.", []string{"method", "code"}},
	{"grpc_seconds", "Duration of unary calls.", perMethod},
	{"client_connections", "Open client connections.", nil},
	{"client_connections_refused_total", "Client connections refused because the limit is reached.", nil},
	{"workers", "Open Work streams.", nil},
	{"workers_refused_total", "Work streams refused because the limit is reached.", nil},
	{"http_calls_refused_total", "Calls over HTTP refused because the limit is reached.", nil},
	{"queues", "Queues with workers or with timers that are ready.", nil},
	{"queues_unattended", "Queues with timers that are ready and no worker on this node.", nil},
	{"credits", "Deliveries that the workers may still be sent.", nil},
	{"deliveries_sent_total", "Deliveries written to Work streams.", nil},
	{"answers_total", "Acks and nacks, by what became of them.", []string{"outcome"}},
	{"bad_tokens_total", "Answers with a token that no delivery can have carried.", nil},
	{"deliveries_given_back_total", "Deliveries of broken streams that went to their next attempt at once.", nil},
	{"deliveries_left_to_lease_total", "Deliveries of broken streams that wait for the end of their lease.", nil},
	{"streams_stalled_total", "Work streams ended because their worker did not read.", nil},
	{"panics_total", "Handlers that panicked; each is a defect.", []string{"port"}},

	{"peer_frames_total", "Frames on the peer port.", []string{"direction"}},
	{"peer_bytes_total", "Bytes on the peer port.", []string{"direction"}},
	{"peer_dials_total", "Dials to peers.", nil},
	{"peer_dial_errors_total", "Dials to peers that failed.", nil},
	{"peer_refused_total", "Connections of peers whose handshake failed.", nil},
	{"peer_lost_total", "Peer connections that broke.", nil},
	{"peer_reconnects_total", "Broken peer connections that an immediate dial brought back.", nil},
	{"peer_bad_frames_total", "Peer connections closed for what they sent.", nil},
	{"peer_call_errors_total", "Calls to peers, Raft's included, without an answer.", nil},
	{"peer_queue_full_total", "Messages turned away because a queue to a peer is full.", nil},
	{"peer_busy_total", "Requests of peers turned away because a limit is reached.", nil},
	{"peer_expired_total", "Raft requests dropped because their caller had given up.", nil},
	{"peer_snapshots_sent_total", "Snapshots sent to followers.", nil},
	{"peer_snapshots_received_total", "Snapshots received from leaders.", nil},
	{"peer_snapshot_errors_total", "Snapshots that did not arrive.", nil},
	{"peer_snapshot_bytes_total", "Bytes of snapshots sent.", nil},
	{"peer_connections", "Open connections to peers.", nil},
	{"peer_queued_messages", "Messages that wait to be sent to peers.", nil},
	{"peer_queued_bytes", "Bytes that wait to be sent to peers.", nil},
	{"peer_inbound_waiting", "Raft requests that wait for their group.", nil},
	{"peer_handlers", "Calls of peers that are being served.", nil},
}
