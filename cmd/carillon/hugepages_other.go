//go:build !linux

package main

func mayAskForHugePages() bool { return false }

func adviseHuge([]byte) error { return errNoHugePages }
