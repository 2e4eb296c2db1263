package raftfsm

// Locate appends one Ref for each token to out: where the timer lies, if it is still at the delivery that the token is of.
// Else the Ref's Revision is 0.
func (f *FSM) Locate(tokens []Token, out []Ref) []Ref {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i := range tokens {
		k := &tokens[i]
		t := f.s.find(space(k.Namespace), k.ID)
		ref := Ref{}
		if t.pending && t.record.revision == k.Revision && t.record.attempt == k.Attempt {
			ref = Ref{Slot: t.slot, Revision: k.Revision}
		}
		out = append(out, ref)
	}
	return out
}
