package webhook

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/carillon-timers/carillon/raftfsm"
)

const (
	secretPrefix = "whsec_"
	// minSecretBytes and maxSecretBytes bound a secret, decoded.
	minSecretBytes = 24
	maxSecretBytes = 64
	// maxSecrets is how many secrets a namespace may have: the new one and the old one while they are changed.
	maxSecrets = 2
	// maxSecretsBytes bounds the file.
	maxSecretsBytes = 1 << 20
)

// Secrets are the keys with which the posts of each namespace are signed.
type Secrets map[string][][]byte

// ReadSecrets reads lines of a namespace and one or two secrets, the newer first:
//
//	payments whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD whsec_...
//
// Empty lines and lines that begin with # are skipped. An error names the line, never a secret.
func ReadSecrets(r io.Reader) (Secrets, error) {
	secrets := Secrets{}
	lines := bufio.NewScanner(io.LimitReader(r, maxSecretsBytes+1))
	read := 0
	for n := 1; lines.Scan(); n++ {
		if read += len(lines.Bytes()) + 1; read > maxSecretsBytes {
			return nil, fmt.Errorf("webhook secrets: over %d bytes", maxSecretsBytes)
		}
		words := strings.Fields(lines.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		if err := secrets.add(words[0], words[1:]); err != nil {
			return nil, fmt.Errorf("webhook secrets: line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("webhook secrets: %w", err)
	}
	return secrets, nil
}

func (s Secrets) add(namespace string, texts []string) error {
	if strings.HasPrefix(namespace, secretPrefix) { // an error must not show it
		return errors.New("the namespace comes first, then its secrets")
	}
	valid := func(r rune) bool { return r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '-' }
	if len(namespace) > raftfsm.MaxNamespaceBytes || strings.ContainsFunc(namespace, func(r rune) bool { return !valid(r) }) {
		return fmt.Errorf("namespace %s is not valid: 1 to %d bytes of [a-z0-9-]", shown(namespace), raftfsm.MaxNamespaceBytes)
	}
	if _, is := s[namespace]; is {
		return fmt.Errorf("namespace %s is there twice: both secrets belong in one line", shown(namespace))
	}
	if len(texts) < 1 || len(texts) > maxSecrets {
		return fmt.Errorf("namespace %s has %d secrets: 1, or %d while they are changed", shown(namespace), len(texts), maxSecrets)
	}
	for _, text := range texts {
		key, err := readSecret(text)
		if err != nil {
			return fmt.Errorf("namespace %s: %w", shown(namespace), err)
		}
		s[namespace] = append(s[namespace], key)
	}
	return nil
}

func readSecret(text string) ([]byte, error) {
	encoded, ok := strings.CutPrefix(text, secretPrefix)
	if !ok {
		return nil, errors.New("a secret must begin with " + secretPrefix)
	}
	key, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(encoded, "="))
	if err != nil {
		return nil, errors.New("a secret must be base64 behind " + secretPrefix)
	}
	if len(key) < minSecretBytes || len(key) > maxSecretBytes {
		return nil, fmt.Errorf("a secret has %d bytes: %d to %d", len(key), minSecretBytes, maxSecretBytes)
	}
	return key, nil
}

// sign adds the headers of Standard Webhooks: the signatures with all secrets, if there are any.
func sign(header http.Header, id string, now time.Time, payload []byte, keys [][]byte) {
	timestamp := strconv.FormatInt(now.Unix(), 10)
	header.Set("Webhook-Id", id)
	header.Set("Webhook-Timestamp", timestamp)
	var signatures []string
	for _, key := range keys {
		mac := hmac.New(sha256.New, key)
		mac.Write([]byte(id + "." + timestamp + "."))
		mac.Write(payload)
		signatures = append(signatures, "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	if len(signatures) > 0 {
		header.Set("Webhook-Signature", strings.Join(signatures, " "))
	}
}

// messageID names a timer and a due time of it; it does not change from attempt to attempt, and another timer under the same ID
// gets another. It has no full stop, which would let one signature stand for two messages.
func messageID(r *raftfsm.Record, due int64) string {
	b := []byte(r.Namespace + "\x00" + r.ID + "\x00")
	b = binary.BigEndian.AppendUint64(b, uint64(r.Created))
	b = binary.BigEndian.AppendUint64(b, uint64(due))
	sum := sha256.Sum256(b)
	return "msg_" + hex.EncodeToString(sum[:16])
}
