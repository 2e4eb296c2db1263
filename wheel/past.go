package wheel

// past is a 4-ary heap of elements whose tick had passed when they were inserted, by tick and then by insertion.
type past struct {
	heap []pastElement
	seq  uint64
}

type pastElement struct {
	when       Tick
	seq        uint64
	idx, stamp uint32
}

func (a *pastElement) before(b *pastElement) bool {
	return a.when < b.when || a.when == b.when && a.seq < b.seq
}

func (p *past) push(when Tick, el element) {
	p.seq++
	p.heap = append(p.heap, pastElement{when, p.seq, el.idx, el.stamp})
	i := len(p.heap) - 1
	e := p.heap[i]
	for i > 0 {
		up := (i - 1) / 4
		if p.heap[up].before(&e) {
			break
		}
		p.heap[i] = p.heap[up]
		i = up
	}
	p.heap[i] = e
}

// pop takes the first element out; there must be one.
func (p *past) pop() pastElement {
	first, last := p.heap[0], len(p.heap)-1
	p.heap[0] = p.heap[last]
	p.heap = p.heap[:last]
	p.down(0)
	p.shrink()
	return first
}

// down moves element i to its place among those below it.
func (p *past) down(i int) {
	n := len(p.heap)
	if i >= n {
		return
	}
	e := p.heap[i]
	for {
		child := 4*i + 1
		if child >= n {
			break
		}
		least := child
		for k := child + 1; k < min(child+4, n); k++ {
			if p.heap[k].before(&p.heap[least]) {
				least = k
			}
		}
		if !p.heap[least].before(&e) {
			break
		}
		p.heap[i] = p.heap[least]
		i = least
	}
	p.heap[i] = e
}

// filter drops the elements that keep refuses and takes them off count.
func (p *past) filter(keep func(pastElement) bool, count *int) {
	kept := p.heap[:0]
	for _, e := range p.heap {
		if keep(e) {
			kept = append(kept, e)
		}
	}
	*count -= len(p.heap) - len(kept)
	p.heap = kept
	for i := (len(kept) - 2) / 4; i >= 0; i-- {
		p.down(i)
	}
	p.shrink()
}

// shrink gives memory back after a flood.
func (p *past) shrink() {
	if c := cap(p.heap); c > 1024 && len(p.heap) < c/4 {
		p.heap = append(make([]pastElement, 0, c/2), p.heap...)
	}
}
