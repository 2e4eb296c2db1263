package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

var _ = register(newVersionCommand)

// version is set by the linker (-X main.version=...).
var version string

// buildVersion is the linker's, the module's, or the commit's; "dev" if there is none.
func buildVersion() string {
	if version != "" {
		return version
	}
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" || info.Main.Version == "(devel)" {
		return "dev"
	}
	return info.Main.Version
}

func newVersionCommand() *cobra.Command {
	var output format
	cmd := &cobra.Command{
		Use:     "version",
		Short:   "Show the version",
		Example: "  carillon version",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output == formatJSON {
				return printJSON(cmd.OutOrStdout(), struct {
					Version string `json:"version"`
					Go      string `json:"go"`
					OS      string `json:"os"`
					Arch    string `json:"arch"`
				}{buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH})
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "carillon %s (%s, %s/%s)\n",
				buildVersion(), runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
	output.flag(cmd.Flags(), formatTable)
	return cmd
}
