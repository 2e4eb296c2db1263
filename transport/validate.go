package transport

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/raftfsm"
	"github.com/carillon-timers/carillon/shard"
)

// This file checks each message of the contract, one function for each; times are checked as they are turned into
// milliseconds (moment.go). What a message means in the log is in convert.go.

// limits are what the checks need to know of the configuration and the moment.
type limits struct {
	payload int       // bytes
	now     time.Time // the wall clock
	// webhooks is Config.Webhooks, webhookHeaders Config.WebhookHeaders.
	webhooks       func(url string) (string, error)
	webhookHeaders func(contentType string, headers map[string]string) error
}

func checkSchedule(r *carillonv1.ScheduleRequest) error {
	if err := known("ScheduleRequest", r); err != nil {
		return err
	}
	if r.Timer == nil {
		return invalid("timer", "(unset)", "must be set")
	}
	if _, ok := carillonv1.IfExists_name[int32(r.IfExists)]; !ok {
		return invalid("if_exists", strconv.Itoa(int(r.IfExists)), "0 to 3")
	}
	if err := checkRequestID(r.RequestId); err != nil {
		return err
	}
	if err := checkRevision(r.ExpectedRevision); err != nil {
		return err
	}
	if r.ExpectedRevision != 0 && r.IfExists != carillonv1.IfExists_IF_EXISTS_REPLACE {
		return invalid("expected_revision", strconv.FormatInt(r.ExpectedRevision, 10), "only with if_exists REPLACE")
	}
	return nil
}

func checkWhen(due, delay bool) error {
	if !due && !delay {
		return invalid("due", "(unset)", "due or delay must be set")
	}
	return nil
}

func checkScheduleBatch(r *carillonv1.ScheduleBatchRequest, size int) error {
	if err := known("ScheduleBatchRequest", r); err != nil {
		return err
	}
	return checkBatch("items", len(r.Items), size)
}

func checkCancelBatch(r *carillonv1.CancelBatchRequest, size int) error {
	if err := known("CancelBatchRequest", r); err != nil {
		return err
	}
	return checkBatch("items", len(r.Items), size)
}

func checkBatch(field string, items, bytes int) error {
	if items > raftfsm.MaxBatchItems {
		return invalid(field, fmt.Sprintf("%d items", items), fmt.Sprintf("at most %d items", raftfsm.MaxBatchItems))
	}
	if bytes > raftfsm.MaxBatchBytes {
		return invalid(field, byteCount(bytes), batchLimit)
	}
	return nil
}

// batchLimit is what the bytes of a batch may be.
var batchLimit = "at most " + byteCount(raftfsm.MaxBatchBytes) + " (1 MiB)"

func checkGet(r *carillonv1.GetRequest) error {
	if err := known("GetRequest", r); err != nil {
		return err
	}
	return checkKey(r.Namespace, r.Id)
}

func checkList(r *carillonv1.ListRequest) error {
	if err := known("ListRequest", r); err != nil {
		return err
	}
	if err := checkNamespace(r.Namespace); err != nil {
		return err
	}
	if err := checkPart("prefix", r.Prefix, raftfsm.MaxIDBytes); err != nil {
		return err
	}
	if err := checkPart("cursor", r.Cursor, raftfsm.MaxIDBytes); err != nil {
		return err
	}
	return checkLimit(r.Limit)
}

func checkReschedule(r *carillonv1.RescheduleRequest) error {
	if err := checkChange("RescheduleRequest", r); err != nil {
		return err
	}
	return checkWhen(r.GetDue() != nil, r.GetDelay() != nil)
}

func checkWorkStart(s *carillonv1.WorkStart) error {
	if s == nil {
		return invalid("start", "(unset)", "the first message must carry start")
	}
	if err := known("WorkStart", s); err != nil {
		return err
	}
	if err := checkNamespace(s.Namespace); err != nil {
		return err
	}
	if err := checkName("queue", s.Queue, raftfsm.MaxQueueBytes); err != nil {
		return err
	}
	return checkPart("worker", s.Worker, MaxWorkerBytes)
}

// checkWork checks a message of a Work stream but for its start and its tokens.
func checkWork(r *carillonv1.WorkRequest) error {
	if err := known("WorkRequest", r); err != nil {
		return err
	}
	if r.Credits < 0 {
		return invalid("credits", strconv.Itoa(int(r.Credits)), fmt.Sprintf("0 to %d", MaxCredits))
	}
	if err := checkCount("acks", len(r.Acks)); err != nil {
		return err
	}
	if err := checkCount("nacks", len(r.Nacks)); err != nil {
		return err
	}
	if err := checkCount("returns", len(r.Returns)); err != nil {
		return err
	}
	for i, b := range r.Acks {
		if err := checkTokenSize("acks", i, b); err != nil {
			return err
		}
	}
	for i, b := range r.Returns {
		if err := checkTokenSize("returns", i, b); err != nil {
			return err
		}
	}
	for i, n := range r.Nacks {
		if err := checkTokenSize("nacks", i, n.Token); err != nil {
			return err
		}
	}
	return checkNacks(r.Nacks)
}

// checkTokenSize bounds what a stream is asked to send back as stale.
func checkTokenSize(field string, i int, b []byte) error {
	if len(b) > MaxTokenBytes {
		return invalid(fmt.Sprintf("%s[%d]", field, i), byteCount(len(b)), "tokens of at most "+byteCount(MaxTokenBytes))
	}
	return nil
}

func checkAck(r *carillonv1.AckRequest) error {
	if err := known("AckRequest", r); err != nil {
		return err
	}
	return checkCount("tokens", len(r.Tokens))
}

func checkNack(r *carillonv1.NackRequest) error {
	if err := known("NackRequest", r); err != nil {
		return err
	}
	if err := checkCount("nacks", len(r.Nacks)); err != nil {
		return err
	}
	return checkNacks(r.Nacks)
}

func checkNacks(nacks []*carillonv1.Nack) error {
	for _, n := range nacks {
		if err := known("Nack", n); err != nil {
			return err
		}
	}
	return nil
}

func checkCount(field string, n int) error {
	if n > MaxAnswers {
		return invalid(field, fmt.Sprintf("%d items", n), fmt.Sprintf("at most %d items", MaxAnswers))
	}
	return nil
}

// checkToken reads a token; one that our own delivery cannot have carried is refused.
func checkToken(field string, b []byte) (raftfsm.Token, error) {
	t, err := raftfsm.ParseToken(b)
	if err == nil {
		err = checkKey(t.Namespace, t.ID)
	}
	if err != nil {
		return raftfsm.Token{}, invalid(field, show(string(b)), "the token of a delivery")
	}
	return t, nil
}

func checkKey(namespace, id string) error {
	if err := checkNamespace(namespace); err != nil {
		return err
	}
	return checkName("id", id, raftfsm.MaxIDBytes)
}

func checkNamespace(s string) error {
	if len(s) > raftfsm.MaxNamespaceBytes {
		return invalid("namespace", show(s), fmt.Sprintf("at most %d bytes", raftfsm.MaxNamespaceBytes))
	}
	for i := range len(s) {
		if c := s[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return invalid("namespace", show(s), "only a-z, 0-9 and -")
		}
	}
	return nil
}

// checkName checks an opaque name: not empty, bounded, UTF-8 without NUL.
func checkName(field, s string, limit int) error {
	if s == "" {
		return invalid(field, `""`, fmt.Sprintf("1 to %d bytes", limit))
	}
	return checkPart(field, s, limit)
}

// checkPart is checkName for a text that may be empty.
func checkPart(field, s string, limit int) error {
	if len(s) > limit {
		return invalid(field, show(s), fmt.Sprintf("at most %d bytes", limit))
	}
	if err := checkText(field, s); err != nil {
		return err
	}
	if strings.IndexByte(s, 0) >= 0 {
		return invalid(field, show(s), "must not contain NUL")
	}
	return nil
}

func checkText(field, s string) error {
	if !utf8.ValidString(s) {
		return invalid(field, show(s), "must be valid UTF-8")
	}
	return nil
}

func checkRequestID(s string) error { return checkPart("request_id", s, raftfsm.MaxRequestIDBytes) }

func checkRevision(n int64) error {
	if n < 0 {
		return invalid("expected_revision", strconv.FormatInt(n, 10), "not negative")
	}
	return nil
}

// known refuses fields that this version does not know: a newer client's wish must not be dropped in silence.
func known(message string, m proto.Message) error {
	unknown := m.ProtoReflect().GetUnknown()
	if len(unknown) == 0 {
		return nil
	}
	number, _, n := protowire.ConsumeTag(unknown)
	if n < 0 {
		return invalid(message, "malformed bytes", "well-formed protobuf")
	}
	return invalid(message, fmt.Sprintf("unknown field %d", number), "the fields of "+message+" that this version knows")
}

func invalid(field, value, limit string) error {
	return &shard.InvalidError{Field: field, Value: value, Limit: limit}
}

// maxShownBytes cuts a value in an error.
const maxShownBytes = 40

func show(s string) string {
	if len(s) <= maxShownBytes {
		return strconv.QuoteToASCII(s)
	}
	cut := maxShownBytes
	for cut > maxShownBytes-utf8.UTFMax && !utf8.RuneStart(s[cut]) {
		cut--
	}
	return fmt.Sprintf("%s... (%s)", strconv.QuoteToASCII(s[:cut]), byteCount(len(s)))
}

func byteCount(n int) string { return fmt.Sprintf("%d bytes", n) }
