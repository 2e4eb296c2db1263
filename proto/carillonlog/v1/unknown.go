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
		return len(k.Complete.unknownFields) > 0
	case *Command_Retry:
		return len(k.Retry.unknownFields) > 0
	}
	return true
}

// HasUnknown says that the schedule, or what is in it, holds a field that this version does not know.
func (m *Schedule) HasUnknown() bool {
	if len(m.unknownFields) > 0 || m.Retry != nil && len(m.Retry.unknownFields) > 0 {
		return true
	}
	return pairsUnknown(m.Headers) || pairsUnknown(m.Labels)
}

// HasUnknown says that the record, or what is in it, holds a field that this version does not know.
func (m *Record) HasUnknown() bool {
	return len(m.unknownFields) > 0 || m.Timer != nil && m.Timer.HasUnknown()
}

// HasUnknown says that the finished timer holds a field that this version does not know.
func (m *Finished) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown says that the remembered write holds a field that this version does not know.
func (m *Request) HasUnknown() bool { return len(m.unknownFields) > 0 }

// HasUnknown says that the header holds a field that this version does not know.
func (m *SnapshotHeader) HasUnknown() bool { return len(m.unknownFields) > 0 }

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
