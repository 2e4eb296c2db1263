package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	carillonv1 "github.com/carillon-timers/carillon/proto/carillon/v1"
	"github.com/carillon-timers/carillon/shard"
)

// Limits of the calls over HTTP.
const (
	// maxBodyBytes is above the largest request in JSON, whose bytes are a third longer.
	maxBodyBytes = 2 * maxReceiveBytes
	// bodyTimeout is how long a client may take to send its request, and to take the answer.
	bodyTimeout = 30 * time.Second
	// maxHTTPCalls bounds the calls at one time; one more gets LIMIT_REACHED.
	maxHTTPCalls = 256
)

// gateway serves the unary calls of the contract as JSON over HTTP. It knows the services by their descriptors alone, and
// goes the same way as gRPC behind the decoding: the same checks, counters, limits and errors.
type gateway struct {
	server *Server
	calls  map[string]httpCall // by path
	room   chan struct{}       // holds one for each call that runs
}

// httpCall is one method.
type httpCall struct {
	service any
	handler grpc.MethodHandler
}

// Gateway serves each unary call as POST /v1/SERVICE/METHOD, both beginning in lower case ("/v1/timers/scheduleBatch").
// Request, response and errors (google.rpc.Status) are protobuf's JSON; the type of the body must be
// application/json, so that no page of another site can send it. It is for one listener, and refuses calls when the
// server has stopped.
func (s *Server) Gateway() http.Handler {
	g := &gateway{server: s, calls: make(map[string]httpCall), room: make(chan struct{}, maxHTTPCalls)}
	for _, service := range []struct {
		desc *grpc.ServiceDesc
		impl any
	}{
		{s.timersDesc(), &timers{server: s}},
		{&carillonv1.Deliveries_ServiceDesc, &deliveries{server: s}},
		{&carillonv1.Cluster_ServiceDesc, &cluster{server: s}},
	} {
		name := service.desc.ServiceName[strings.LastIndexByte(service.desc.ServiceName, '.')+1:]
		for _, m := range service.desc.Methods {
			g.calls["/v1/"+lowerFirst(name)+"/"+lowerFirst(m.MethodName)] = httpCall{service.impl, m.Handler}
		}
	}
	return g
}

func lowerFirst(s string) string { return strings.ToLower(s[:1]) + s[1:] }

func (g *gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Connection", "close") // what is refused before its body is read is not read to its end
	call, ok := g.calls[r.URL.Path]
	switch {
	case !ok:
		writeStatus(w, http.StatusNotFound, status.New(codes.Unimplemented, "no such call: "+show(r.URL.Path)))
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		writeStatus(w, http.StatusMethodNotAllowed, status.New(codes.Unimplemented, "calls are made with POST"))
		return
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		writeStatus(w, http.StatusUnsupportedMediaType, StatusOf(invalid("Content-Type", show(r.Header.Get("Content-Type")), "must be application/json")))
		return
	}
	select {
	case g.room <- struct{}{}:
		defer func() { <-g.room }()
	default:
		g.server.counts.refusedHTTP.Add(1)
		g.refuse(w, &shard.OverloadedError{Limit: fmt.Sprintf("%d calls over HTTP at one time", maxHTTPCalls), RetryAfter: time.Second})
		return
	}
	if g.server.stopping.Err() != nil {
		g.refuse(w, errStopping)
		return
	}
	body, err := readBody(w, r)
	if err != nil {
		code, err := bodyError(err, r.ContentLength, len(body))
		writeStatus(w, code, StatusOf(err))
		return
	}
	w.Header().Del("Connection")
	g.serve(w, r.Context(), call, body)
}

// bodyError says why a body could not be read, of which read bytes were; its header said how long it is, or -1.
func bodyError(err error, length int64, read int) (int, error) {
	if _, tooLong := errors.AsType[*http.MaxBytesError](err); tooLong {
		size := "over " + byteCount(maxBodyBytes)
		if length >= 0 {
			size = fmt.Sprintf("%d bytes", length)
		}
		return http.StatusRequestEntityTooLarge, invalid("body", size, "at most "+byteCount(maxBodyBytes)+" (4 MiB)")
	}
	came := "cut off after " + byteCount(read)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return http.StatusBadRequest, invalid("body", came, fmt.Sprintf("a whole body within %v", bodyTimeout))
	case length >= 0:
		return http.StatusBadRequest, invalid("body", came, fmt.Sprintf("a whole body, of %d bytes as its Content-Length says", length))
	}
	return http.StatusBadRequest, invalid("body", came, "a whole body, with its end")
}

// readBody reads the whole body; a client that is slow is cut off.
func readBody(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	conn := http.NewResponseController(w)
	slow := time.AfterFunc(bodyTimeout, func() {
		_ = conn.SetReadDeadline(time.Unix(1, 0)) // what cannot have a deadline (a test's recorder) is not slow
	})
	defer slow.Stop()
	return io.ReadAll(http.MaxBytesReader(w, r.Body, maxBodyBytes))
}

func (g *gateway) serve(w http.ResponseWriter, ctx context.Context, call httpCall, body []byte) {
	resp, err := call.handler(call.service, ctx, func(request any) error { return decodeJSON(body, request) }, g.server.unary)
	if err != nil {
		g.refuse(w, err)
		return
	}
	message, ok := resp.(proto.Message)
	if !ok {
		g.refuse(w, errPanic)
		return
	}
	answer, err := protojson.Marshal(message)
	if err != nil {
		g.server.config.Logger.Error("an answer cannot be JSON", "err", err)
		g.refuse(w, errPanic)
		return
	}
	writeJSON(w, http.StatusOK, answer)
}

func decodeJSON(body []byte, request any) error {
	if raw, ok := request.(*rawMessage); ok {
		raw.json = body
		return nil
	}
	message, ok := request.(proto.Message)
	if !ok {
		return errPanic
	}
	name := string(message.ProtoReflect().Descriptor().Name())
	if len(body) == 0 {
		if message.ProtoReflect().Descriptor().Fields().Len() == 0 { // there is nothing to say
			return nil
		}
		return invalid("body", "(empty)", "a "+name+" in protobuf's JSON, at least {}")
	}
	err := protojson.Unmarshal(body, message)
	if err == nil {
		return nil
	}
	if twice := checkOneofs(body, message.ProtoReflect().Descriptor()); twice != nil {
		return twice
	}
	return invalid("body", "JSON of "+byteCount(len(body)), "a "+name+" in protobuf's JSON: "+cutText(err.Error(), maxStatusBytes/2))
}

// checkOneofs finds a place where two fields are given of which only one may be set, and names what they are alternatives for
// ("target"). It is called for JSON that was refused.
func checkOneofs(raw json.RawMessage, message protoreflect.MessageDescriptor) error {
	var object map[string]json.RawMessage
	if json.Unmarshal(raw, &object) != nil {
		return nil // the other error says it
	}
	given := make(map[string]string) // oneof -> the field that is given
	fields := message.Fields()
	for i := range fields.Len() {
		field := fields.Get(i)
		value, ok := object[field.JSONName()]
		if !ok {
			if value, ok = object[string(field.Name())]; !ok {
				continue
			}
		}
		if one := field.ContainingOneof(); one != nil && !one.IsSynthetic() {
			name := string(one.Name())
			if other, twice := given[name]; twice {
				return invalid(name, other+" and "+string(field.Name()), "only one of them")
			}
			given[name] = string(field.Name())
		}
		if err := checkNested(value, field); err != nil {
			return err
		}
	}
	return nil
}

// checkNested is checkOneofs for what lies in a field.
func checkNested(value json.RawMessage, field protoreflect.FieldDescriptor) error {
	if field.Kind() != protoreflect.MessageKind || field.IsMap() {
		return nil
	}
	if !field.IsList() {
		return checkOneofs(value, field.Message())
	}
	var items []json.RawMessage
	if json.Unmarshal(value, &items) != nil {
		return nil
	}
	for _, item := range items {
		if err := checkOneofs(item, field.Message()); err != nil {
			return err
		}
	}
	return nil
}

// refuse answers with an error.
func (g *gateway) refuse(w http.ResponseWriter, err error) {
	s := StatusOf(err)
	for _, d := range s.Details() {
		if retry, ok := d.(*errdetails.RetryInfo); ok {
			seconds := (retry.GetRetryDelay().AsDuration() + time.Second - 1) / time.Second
			w.Header().Set("Retry-After", strconv.FormatInt(int64(seconds), 10))
		}
	}
	writeStatus(w, httpCode(s.Code()), s)
}

func writeStatus(w http.ResponseWriter, code int, s *status.Status) {
	body, err := protojson.Marshal(s.Proto())
	if err != nil { // a text that is not UTF-8; ours are
		body = fmt.Appendf(nil, `{"code":%d}`, s.Code())
	}
	writeJSON(w, code, body)
}

func writeJSON(w http.ResponseWriter, code int, body []byte) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	slow := time.AfterFunc(bodyTimeout, func() {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Unix(1, 0)) // as in readBody
	})
	defer slow.Stop()
	w.WriteHeader(code)
	_, _ = w.Write(body) // who has gone away does not need the answer
}

// statusClientGone is what a client that has gone away would be told.
const statusClientGone = 499

// httpCode is the HTTP code for a gRPC code, as google.rpc.Code maps them.
func httpCode(code codes.Code) int {
	switch code {
	case codes.OK:
		return http.StatusOK
	case codes.Canceled:
		return statusClientGone
	case codes.InvalidArgument, codes.FailedPrecondition, codes.OutOfRange:
		return http.StatusBadRequest
	case codes.DeadlineExceeded:
		return http.StatusGatewayTimeout
	case codes.NotFound:
		return http.StatusNotFound
	case codes.AlreadyExists, codes.Aborted:
		return http.StatusConflict
	case codes.PermissionDenied:
		return http.StatusForbidden
	case codes.Unauthenticated:
		return http.StatusUnauthorized
	case codes.ResourceExhausted:
		return http.StatusTooManyRequests
	case codes.Unimplemented:
		return http.StatusNotImplemented
	case codes.Unavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
