package main

func printQueues() {}
