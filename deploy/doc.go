// Package deploy holds what runs Carillon on machines: the image, Compose, systemd. Its test starts the Compose file for
// real, where a Docker engine runs.
package deploy
