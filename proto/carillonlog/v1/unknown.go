// Package carillonlogv1 is the log and snapshot contract of Carillon: what lies on the disks, readable for ever.
package carillonlogv1

// HasUnknown says that the entry, or a command in it, holds a field that this version does not know: it was written by a
// newer version, and applying the rest of it would make the replicas differ. It looks at the entry, the commands and
// what is in them.
func (m *Entry) HasUnknown() bool {
	if len(m.unknownFields) > 0 || m.Begin != nil && len(m.Begin.unknownFields) > 0 {
		return true
	}
	for _, c := range m.Commands {
		if c.HasUnknown() {
			return true
		}
	}
	return false
}

// HasUnknown says that the command holds a field that this version does not know, or is of a kind that it does not know.
func (m *Command) HasUnknown() bool {
	if len(m.unknownFields) > 0 {
		return true
	}
	switch k := m.Kind.(type) {
	case *Command_Schedule:
		return k.Schedule.HasUnknown()
	case *Command_Cancel:
		return len(k.Cancel.unknownFields) > 0
	case *Command_Reschedule:
		return len(k.Reschedule.unknownFields) > 0
	case *Command_Complete:
		return len(k.Complete.unknownFields) > 0 || k.Complete.Next.HasUnknown()
	case *Command_Retry:
		return len(k.Retry.unknownFields) > 0 || k.Retry.Next.HasUnknown()
	case *Command_Pause:
		return len(k.Pause.unknownFields) > 0
	case *Command_Resume:
		return len(k.Resume.unknownFields) > 0 || k.Resume.Next.HasUnknown()
	case *Command_Advance:
		return len(k.Advance.unknownFields) > 0 || k.Advance.Next.HasUnknown()
	case *Command_Expire:
		return len(k.Expire.unknownFields) > 0
	case *Command_Redrive:
		return len(k.Redrive.unknownFields) > 0
	case *Command_Purge:
		return len(k.Purge.unknownFields) > 0
	case *Command_Atomic:
		return k.Atomic.HasUnknown()
	}
	return true
}

// HasUnknown says that the batch, or a command in it, holds a field that this version does not know.
func (m *Atomic) HasUnknown() bool {
	for _, c := range m.Commands {
		if c.HasUnknown() {
			return true
		}
	}
	return len(m.unknownFields) > 0
}

// HasUnknown says that there is a Next, and that it holds a field that this version does not know.
func (m *Next) HasUnknown() bool { return m != nil && len(m.unknownFields) > 0 }

// HasUnknown says that the message, or what is in it, holds a field that this version does not know.
func (m *Extra) HasUnknown() bool {
	if m == nil {
		return false
	}
	return len(m.unknownFields) > 0 || failuresUnknown(m.Failures) || m.Repeat != nil && len(m.Repeat.unknownFields) > 0 || m.Dead != nil && len(m.Dead.unknownFields) > 0
}

// HasUnknown says that the schedule, or what is in it, holds a field that this version does not know.
func (m *Schedule) HasUnknown() bool {
	if len(m.unknownFields) > 0 || m.Retry != nil && len(m.Retry.unknownFields) > 0 {
		return true
	}
	return pairsUnknown(m.Headers) || pairsUnknown(m.Labels) || m.Extra.HasUnknown()
}

// HasUnknown says that the record, or what is in it, holds a field that this version does not know.
func (m *Record) HasUnknown() bool {
	return len(m.unknownFields) > 0 || m.Timer != nil && m.Timer.HasUnknown()
}

// HasUnknown says that the finished timer, or what is in it, holds a field that this version does not know.
func (m *Finished) HasUnknown() bool { return len(m.unknownFields) > 0 || failuresUnknown(m.Failures) }

// HasUnknown says that the remembered write holds a field that this version does not know.
func (m *Request) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown says that the header, or what is in it, holds a field that this version does not know.
func (m *SnapshotHeader) HasUnknown() bool {
	for _, r := range m.Reigns {
		if len(r.unknownFields) > 0 {
			return true
		}
	}
	return len(m.unknownFields) > 0
}

// HasUnknown says that the trailer holds a field that this version does not know.
func (m *SnapshotTrailer) HasUnknown() bool { return len(m.unknownFields) > 0 }

func pairsUnknown(pairs []*Pair) bool {
	for _, p := range pairs {
		if len(p.unknownFields) > 0 {
			return true
		}
	}
	return false
}

func failuresUnknown(failures []*Failure) bool {
	for _, f := range failures {
		if len(f.unknownFields) > 0 {
			return true
		}
	}
	return false
}
