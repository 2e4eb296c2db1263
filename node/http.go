package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/pprof"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Limits of the HTTP server.
const (
	httpHeaderTimeout = 5 * time.Second
	httpIdleTimeout   = time.Minute
	httpHeaderBytes   = 16 << 10
	httpStopTimeout   = time.Second
	scrapesAtOnce     = 4
)

// httpServer answers health, metrics and the calls as JSON.
type httpServer struct{ server *http.Server }

func newHTTPServer(n *Node) *httpServer {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := n.readiness(); err != nil {
			answer(w, http.StatusServiceUnavailable, "not ready: "+err.Error())
			return
		}
		answer(w, http.StatusOK, "ready")
	})
	mux.Handle("GET /metrics", promhttp.HandlerFor(n.metrics.registry, promhttp.HandlerOpts{MaxRequestsInFlight: scrapesAtOnce}))
	mux.Handle("/v1/", n.server.Gateway())
	if n.config.PProf {
		mux.HandleFunc("/debug/pprof/", pprof.Index)
		mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
		mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
		mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	}
	return &httpServer{&http.Server{
		Handler: mux, ReadHeaderTimeout: httpHeaderTimeout, IdleTimeout: httpIdleTimeout, MaxHeaderBytes: httpHeaderBytes,
	}}
}

func answer(w http.ResponseWriter, code int, words string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(code)
	_, _ = io.WriteString(w, words+"\n") // who has gone away does not need the answer
}

// run serves until the context ends.
func (s *httpServer) run(ctx context.Context, ln net.Listener) error {
	stopped := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		defer close(stopped)
		end, cancel := context.WithTimeout(context.Background(), httpStopTimeout)
		defer cancel()
		if s.server.Shutdown(end) != nil {
			_ = s.server.Close() // what did not finish in time is cut off
		}
	})()
	err := s.server.Serve(ln)
	if !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %v: %w", ln.Addr(), err)
	}
	<-stopped
	return nil
}
