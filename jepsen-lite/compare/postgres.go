package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/carillon-timers/carillon/jepsen-lite/local"
)

const (
	// postgresConns is the size of the pool: on few processors more connections are slower.
	postgresConns = 64
	// postgresPoll is how long the poller waits when nothing is due, postgresPage how much it takes at once.
	postgresPoll, postgresPage = 10 * time.Millisecond, 500
)

// postgres is a primary with two standbys; a commit waits until one of them has it on disk too, so that it is on two of
// three as with the other systems, or until both have. A worker polls with SELECT ... FOR UPDATE SKIP LOCKED and deletes what it has handled.
type postgres struct {
	must    int // how many standbys must have a commit on disk: 1 or 2
	bin     string
	account *syscall.Credential // nil: as this user
	version string
	servers []*local.Process
	pool    *pgxpool.Pool
}

func (p *postgres) Title() string {
	return "PostgreSQL" + p.version + " SKIP LOCKED poller, two standbys, " + []string{"one", "both"}[p.must-1] + " must have flushed"
}

// find finds the tools, and the user to run as: PostgreSQL refuses to run as root.
func (p *postgres) find(dir string) error {
	found, err := exec.LookPath("initdb")
	if err != nil {
		all, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb")
		if len(all) == 0 {
			return errors.New("initdb is not on this machine; Debian's package is postgresql")
		}
		found = all[len(all)-1]
	}
	if found, err = filepath.EvalSymlinks(found); err != nil {
		return err
	}
	p.bin = filepath.Dir(found)
	if os.Geteuid() != 0 {
		return nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		return fmt.Errorf("PostgreSQL does not run as root: %w", err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return err
	}
	p.account = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return os.Chown(dir, int(uid), int(gid))
}

func (p *postgres) Start(ctx context.Context, dir string) error {
	if err := p.find(dir); err != nil {
		return err
	}
	ports, err := local.FreePorts(3)
	if err != nil {
		return err
	}
	primary := filepath.Join(dir, "primary")
	if err := p.tool(ctx, dir, "initdb", "-D", primary, "-U", "postgres", "--auth=trust", "-E", "UTF8", "--no-locale"); err != nil {
		return err
	}
	if err := p.serve(dir, "primary", ports[0]); err != nil {
		return err
	}
	address := fmt.Sprintf("postgres://postgres@127.0.0.1:%d/postgres?sslmode=disable", ports[0])
	if err := p.connect(ctx, address); err != nil {
		return err
	}
	for i, name := range []string{"s1", "s2"} {
		if err := p.tool(ctx, dir, "pg_basebackup", "-h", "127.0.0.1", "-p", fmt.Sprint(ports[0]), "-U", "postgres",
			"-D", filepath.Join(dir, name), "-R", "-X", "stream", "-c", "fast"); err != nil {
			return err
		}
		if err := p.serve(dir, name, ports[1+i]); err != nil {
			return err
		}
	}
	return p.setUp(ctx)
}

// tool runs one of PostgreSQL's programs to its end.
func (p *postgres) tool(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(p.bin, name), args...)
	cmd.Dir = dir
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.account}
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, out)
	}
	return nil
}

func (p *postgres) serve(dir, name string, port int) error {
	s := &local.Process{Name: name, Path: filepath.Join(p.bin, "postgres"), Log: filepath.Join(dir, name+".log"), User: p.account, Args: []string{
		"-D", filepath.Join(dir, name), "-p", fmt.Sprint(port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
		"-c", "cluster_name=" + name, "-c", "max_connections=" + fmt.Sprint(postgresConns+20), "-c", "shared_buffers=256MB",
		"-c", "max_wal_size=4GB", "-c", "synchronous_commit=on", "-c", "fsync=on",
	}}
	if err := s.Start(); err != nil {
		return err
	}
	p.servers = append(p.servers, s)
	return nil
}

// connect opens the pool and waits until the primary answers.
func (p *postgres) connect(ctx context.Context, address string) error {
	config, err := pgxpool.ParseConfig(address)
	if err != nil {
		return err
	}
	config.MaxConns = postgresConns
	if p.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return err
	}
	for {
		var version string
		err := p.pool.QueryRow(ctx, "SHOW server_version").Scan(&version)
		if err == nil {
			number, _, _ := strings.Cut(version, " ")
			p.version = " " + number
			return nil
		}
		if waited := pause(ctx, 100*time.Millisecond); waited != nil {
			return errors.Join(err, waited)
		}
	}
}

// setUp makes the table, and has commits wait as soon as both standbys follow.
func (p *postgres) setUp(ctx context.Context) error {
	for _, sql := range []string{
		"CREATE TABLE timers (id text PRIMARY KEY, due timestamptz NOT NULL, payload bytea NOT NULL)",
		"CREATE INDEX timers_due ON timers (due)",
		fmt.Sprintf("ALTER SYSTEM SET synchronous_standby_names = 'ANY %d (s1, s2)'", p.must),
		"SELECT pg_reload_conf()",
	} {
		if _, err := p.pool.Exec(ctx, sql); err != nil {
			return fmt.Errorf("%s: %w", sql, err)
		}
	}
	for {
		var standbys int
		err := p.pool.QueryRow(ctx, "SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'").Scan(&standbys)
		if err != nil {
			return err
		}
		if standbys == 2 {
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return fmt.Errorf("%d of 2 standbys follow: %w", standbys, err)
		}
	}
}

func (p *postgres) Schedule(ctx context.Context, timers []timer) error {
	if len(timers) == 1 {
		t := timers[0]
		_, err := p.pool.Exec(ctx, "INSERT INTO timers (id, due, payload) VALUES ($1, $2, $3)", t.id, t.due, t.payload)
		return err
	}
	ids, dues, payloads := make([]string, len(timers)), make([]time.Time, len(timers)), make([][]byte, len(timers))
	for i, t := range timers {
		ids[i], dues[i], payloads[i] = t.id, t.due, t.payload
	}
	_, err := p.pool.Exec(ctx, "INSERT INTO timers (id, due, payload) SELECT * FROM unnest($1::text[], $2::timestamptz[], $3::bytea[])",
		ids, dues, payloads)
	return err
}

func (p *postgres) Work(ctx context.Context, handle func(string)) error {
	for ctx.Err() == nil {
		n, err := p.poll(ctx, handle)
		if err != nil && ctx.Err() == nil {
			return err
		}
		if n == 0 && pause(ctx, postgresPoll) != nil {
			break
		}
	}
	return nil
}

// poll handles one page of what is due.
func (p *postgres) poll(ctx context.Context, handle func(string)) (n int, err error) {
	err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error {
		rows, err := tx.Query(ctx, `SELECT id, payload FROM timers WHERE due <= now()
			ORDER BY due LIMIT $1 FOR UPDATE SKIP LOCKED`, postgresPage)
		if err != nil {
			return err
		}
		var ids []string
		var id string
		var payload []byte
		if _, err := pgx.ForEachRow(rows, []any{&id, &payload}, func() error {
			ids = append(ids, id)
			return nil
		}); err != nil || len(ids) == 0 {
			return err
		}
		for _, id := range ids {
			handle(id)
		}
		n = len(ids)
		_, err = tx.Exec(ctx, "DELETE FROM timers WHERE id = ANY($1)", ids)
		return err
	})
	return n, err
}

func (p *postgres) Stop() {
	if p.pool != nil {
		p.pool.Close()
	}
	for _, s := range p.servers {
		s.End(syscall.SIGINT) // the quick one of its orderly stops
	}
}
