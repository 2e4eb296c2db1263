package peer

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"testing"
)

func newTestReassembler(b []byte) *reassembler { return newReassembler(bytes.NewReader(b), 1<<20) }

// frames empties an outbox into bytes.
func frames(o *outbox) []byte {
	var b []byte
	for more := true; more; {
		b, more = o.frame(b)
	}
	return b
}

// order reads what an outbox has sent: the types and IDs of its frames.
func order(t *testing.T, b []byte) string {
	t.Helper()
	s := ""
	for len(b) > 0 {
		h, err := parseHeader(b)
		if err != nil {
			t.Fatal(err)
		}
		s += fmt.Sprintf("%d ", h.id)
		b = b[headerBytes+h.length:]
	}
	return s
}

// Urgent messages overtake; bulk queues take turns, a fragment each; within a queue the order holds.
func TestOutboxOrder(t *testing.T) {
	t.Parallel()
	o := newOutbox(8, 1<<20)
	big := bytes.Repeat([]byte{1}, 2*fragmentBytes+100)
	push := func(id uint64, payload []byte, l lane) {
		if _, err := o.push(&message{typ: typeAppendEntries, id: id, payload: payload}, l); err != nil {
			t.Fatal(err)
		}
	}
	push(1, bytes.Clone(big), lane{group: 1})
	push(2, []byte("x"), lane{group: 1})
	push(3, bytes.Clone(big), lane{group: 2})
	push(4, []byte("x"), lane{group: 3})
	push(5, []byte("x"), lane{group: 3, class: classCall})
	b, _ := o.frame(nil)
	push(6, []byte("x"), lane{urgent: true})
	b = append(b, frames(o)...)
	if got, want := order(t, b), "1 6 3 4 5 1 3 1 3 2 "; got != want {
		t.Errorf("order %q, want %q", got, want)
	}
	r := newTestReassembler(b)
	got := map[uint64]int{}
	for {
		h, payload, err := r.next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got[h.id] = len(payload)
	}
	if want := map[uint64]int{1: len(big), 2: 1, 3: len(big), 4: 1, 5: 1, 6: 1}; fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("messages %v, want %v", got, want)
	}
	if n, bytes := o.depth(); n != 0 || bytes != 0 || len(o.queues) != 0 {
		t.Errorf("left over: %d messages, %d bytes, %d queues", n, bytes, len(o.queues))
	}
}

// No more than activeMax large messages are under way at once; small ones pass those that wait, and one that is given
// up before its turn is never sent.
func TestOutboxActive(t *testing.T) {
	t.Parallel()
	o := newOutbox(8, 8<<20)
	var all []*message
	for id := range uint64(activeMax + 2) {
		m := &message{typ: typeAppendEntries, id: id, payload: make([]byte, 2*fragmentBytes)}
		all = append(all, m)
		if _, err := o.push(m, lane{group: uint32(id)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.push(&message{typ: typeAppendEntries, id: 99, payload: []byte("x")}, lane{group: 99}); err != nil {
		t.Fatal(err)
	}
	if !all[activeMax].cancel() {
		t.Error("a message that waits for its turn could not be taken back")
	}
	if got, want := order(t, frames(o)), "0 1 2 3 99 0 1 2 3 5 5 "; got != want || o.active != 0 {
		t.Errorf("order %q, want %q; %d active", got, want, o.active)
	}
}

// A queue has a limit, others are not touched by it; a message taken back is not sent.
func TestOutboxLimits(t *testing.T) {
	t.Parallel()
	o := newOutbox(2, 100)
	var first *message
	for i := range 2 {
		m := &message{typ: typeCall, id: uint64(i), payload: make([]byte, 10)}
		if first == nil {
			first = m
		}
		if _, err := o.push(m, lane{group: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := o.push(&message{typ: typeCall, id: 2}, lane{group: 1}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("third message: %v", err)
	}
	if _, err := o.push(&message{typ: typeCall, id: 3, payload: make([]byte, 500)}, lane{group: 2}); err != nil {
		t.Errorf("one large message in an empty queue: %v", err)
	}
	if _, err := o.push(&message{typ: typeCall, id: 4, payload: make([]byte, 1)}, lane{group: 2}); !errors.Is(err, ErrQueueFull) {
		t.Errorf("beyond the bytes: %v", err)
	}
	if !first.cancel() {
		t.Error("a queued message could not be taken back")
	}
	if got := order(t, frames(o)); got != "3 1 " {
		t.Errorf("sent %q", got)
	}
	o.close()
	if _, err := o.push(&message{typ: typeCall}, lane{}); !errors.Is(err, ErrConnLost) {
		t.Errorf("after close: %v", err)
	}
}

// What is not the protocol has a name and is no panic.
func TestBadFrames(t *testing.T) {
	t.Parallel()
	good := func() []byte { return appendFrame(nil, header{typ: typeCall, id: 1}, nil, []byte("payload")) }
	frag := func(flags uint8, total uint32, n int) []byte {
		p := []byte{byte(total), byte(total >> 8), byte(total >> 16), byte(total >> 24)}
		if flags&flagFirst == 0 {
			p = nil
		}
		return appendFrame(nil, header{typ: typeCall, id: 1, flags: flags}, p, make([]byte, n))
	}
	with := func(at int, v byte) []byte { b := good(); b[at] ^= v; return b }
	for name, c := range map[string]struct {
		b    []byte
		want error
	}{
		"payload bit":        {with(headerBytes, 1), ErrBadFrame},
		"group bit":          {with(8, 1), ErrBadFrame},
		"id bit":             {with(12, 1), ErrBadFrame},
		"crc bit":            {with(20, 1), ErrBadFrame},
		"length shorter":     {with(0, 1), ErrBadFrame},
		"length huge":        {with(3, 1), ErrBadFrame},
		"unknown type":       {with(4, 0x80), ErrBadFrame},
		"unknown flag":       {with(5, 4), ErrBadFrame},
		"reserved":           {with(6, 1), ErrBadFrame},
		"cut":                {good()[:headerBytes+3], io.ErrUnexpectedEOF},
		"cut header":         {good()[:5], io.ErrUnexpectedEOF},
		"first alone":        {frag(flagFirst, 8, 8), ErrBadFrame},
		"first twice":        {append(frag(3, 8, 4), frag(3, 8, 4)...), ErrBadFrame},
		"middle alone":       {frag(flagMore, 0, 8), ErrBadFrame},
		"too much":           {append(frag(3, 8, 4), frag(0, 0, 5)...), ErrBadFrame},
		"too little":         {append(frag(3, 8, 4), frag(0, 0, 3)...), ErrBadFrame},
		"larger than max":    {frag(3, 1<<20+1, 4), ErrTooLarge},
		"fragment of a ping": {appendFrame(nil, header{typ: typePing, flags: flagMore}, nil, nil), ErrBadFrame},
		"first without size": {appendFrame(nil, header{typ: typeCall, flags: 3}, nil, nil), ErrBadFrame},
		"unfinished too big": {bytes.Join([][]byte{tooMuch(1), tooMuch(2), tooMuch(3), tooMuch(4), tooMuch(5)}, nil), ErrTooLarge},
	} {
		if _, _, err := newTestReassembler(c.b).next(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
	if _, b, err := newTestReassembler(good()).next(); err != nil || string(b) != "payload" {
		t.Errorf("good frame: %q, %v", b, err)
	}
}

// Large messages one after the other do not use up what is allowed for unfinished ones.
func TestReassemblerForgets(t *testing.T) {
	t.Parallel()
	o := newOutbox(20, 20<<20)
	for id := range uint64(3 * activeMax) {
		if _, err := o.push(&message{typ: typeCall, id: id, payload: make([]byte, 1<<20)}, lane{}); err != nil {
			t.Fatal(err)
		}
	}
	r := newTestReassembler(frames(o))
	for range 3 * activeMax {
		if _, payload, err := r.next(); err != nil || len(payload) != 1<<20 {
			t.Fatalf("%d bytes, %v", len(payload), err)
		}
	}
	if r.partBytes != 0 || len(r.parts) != 0 {
		t.Errorf("%d bytes and %d messages unfinished", r.partBytes, len(r.parts))
	}
}

// tooMuch begins a message of the largest size.
func tooMuch(id uint64) []byte {
	return appendFrame(nil, header{typ: typeCall, id: id, flags: 3}, []byte{0, 0, 16, 0}, []byte("x"))
}

func FuzzFrames(f *testing.F) {
	o := newOutbox(8, 1<<20)
	_, _ = o.push(&message{typ: typeAppendEntries, id: 1, payload: make([]byte, fragmentBytes+1)}, lane{})
	_, _ = o.push(&message{typ: typeVote, id: 2, payload: []byte("v")}, lane{urgent: true})
	f.Add(frames(o))
	f.Add(appendFrame(nil, header{typ: typeCall, id: 1, flags: 3}, []byte{8, 0, 0, 0}, []byte("half")))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := newTestReassembler(b)
		for total := 0; ; {
			_, payload, err := r.next()
			if total += len(payload); total > len(b) {
				t.Fatalf("%d bytes of messages out of %d", total, len(b))
			}
			if err != nil {
				return
			}
		}
	})
}

// FuzzRepairedFrames gives frames a right checksum, so that what is behind it is reached.
func FuzzRepairedFrames(f *testing.F) {
	f.Add(uint8(typeCall), uint8(3), []byte("\x08\x00\x00\x00half"), uint8(0), []byte("half"))
	f.Add(uint8(typeResponse), uint8(0), []byte("a"), uint8(2), []byte("b"))
	f.Fuzz(func(t *testing.T, typ, flags1 uint8, b1 []byte, flags2 uint8, b2 []byte) {
		b := appendFrame(nil, header{typ: frameType(typ), flags: flags1}, nil, b1)
		b = appendFrame(b, header{typ: frameType(typ), flags: flags2}, nil, b2)
		r := newTestReassembler(b)
		for range 3 {
			h, payload, err := r.next()
			if err != nil {
				return
			}
			_, _ = decodeRaftRequest(h.typ, payload)
		}
	})
}
