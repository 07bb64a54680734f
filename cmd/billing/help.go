package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"billing/cmd/billing/config"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Help has one form for all commands: what it does, and when to use it; usage;
// examples; exit codes; flags. Nothing of it is wider than a terminal.

// helpColumns is how wide help is at the most.
const helpColumns = 80

// exitCodes is the annotation of a command that has what its exit codes mean, a
// code at the beginning of a line and its meaning behind it.
const exitCodes = "exit codes"

// exits are a command's exit codes. Those for wrong usage are the same for all.
func exits(lines string) map[string]string { return map[string]string{exitCodes: lines} }

// purposes group the commands for who looks for one.
var purposes = []struct {
	title    string
	commands []string
}{
	{"Set up", []string{"config check", "migrate"}},
	{"Run", []string{"run", "healthcheck"}},
	{"Look", []string{"status", "lookup", "verify", "xa list"}},
	{"Repair", []string{"xa resolve", "repair"}},
	{"Try out", []string{"produce"}},
	{"This program", []string{"version", "help"}},
}

// writeHelp writes what a command's --help says.
func writeHelp(w io.Writer, cmd *cobra.Command) error {
	var b strings.Builder
	about := cmd.Long
	if about == "" {
		about = cmd.Short + "."
	}
	fmt.Fprintf(&b, "%s\n\nUsage:\n", strings.TrimSpace(about))
	if cmd.HasSubCommands() {
		fmt.Fprintf(&b, "  %s COMMAND\n", cmd.CommandPath())
	} else {
		fmt.Fprintf(&b, "  %s\n", cmd.UseLine())
	}
	switch {
	case !cmd.HasParent():
		writeCommands(&b, cmd)
	case cmd.HasSubCommands():
		b.WriteString("\nCommands:\n")
		listCommands(&b, cmd, subCommands(cmd))
	}
	fmt.Fprintf(&b, "\nExamples:\n%s\n", cmd.Example)
	if codes := cmd.Annotations[exitCodes]; codes != "" {
		b.WriteString("\nExit codes:\n")
		for line := range strings.Lines(codes) {
			b.WriteString("  " + strings.TrimSuffix(line, "\n") + "\n")
		}
	}
	b.WriteString("\nFlags:\n" + flagText(cmd))
	if cmd.HasParent() && cmd.Long != "" {
		b.WriteString("\nWords such as lane, epoch, decision and branch: see billing --help.\n")
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("help: write: %w", err)
	}
	return nil
}

// writeCommands is the map of all commands, by purpose.
func writeCommands(b *strings.Builder, root *cobra.Command) {
	for _, p := range purposes {
		fmt.Fprintf(b, "\n%s:\n", p.title)
		listCommands(b, root, p.commands)
	}
}

// listCommands lists commands, by their names below cmd.
func listCommands(b *strings.Builder, cmd *cobra.Command, names []string) {
	t := tabwriter.NewWriter(b, 16, 0, 2, ' ', 0)
	for _, name := range names {
		if sub, _, err := cmd.Find(strings.Fields(name)); err == nil {
			fmt.Fprintf(t, "  %s\t%s\n", name, sub.Short)
		}
	}
	_ = t.Flush() // to memory
}

func subCommands(cmd *cobra.Command) (names []string) {
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	return names
}

// flagText are the command's flags and those of all commands.
func flagText(cmd *cobra.Command) string {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.SortFlags = false
	all.AddFlagSet(cmd.LocalFlags())
	all.AddFlagSet(cmd.InheritedFlags())
	return all.FlagUsagesWrapped(helpColumns)
}

// newHelpCommand is cobra's help command, but one that fails where there is no
// such command.
func newHelpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show what a command does and takes",
		Example: `  billing help
  billing help config check`,
		Annotations: exits("0  it was shown\n2  there is no such command"),
		RunE: func(cmd *cobra.Command, args []string) error {
			target, rest, err := cmd.Root().Find(args)
			switch {
			case err != nil:
				return noSuchCommand(cmd.Root(), args[0])
			case len(rest) > 0:
				return noSuchCommand(target, rest[0])
			}
			target.InitDefaultHelpFlag()
			target.InitDefaultVersionFlag()
			return writeHelp(cmd.OutOrStdout(), target)
		},
	}
}

// noSuchCommand is of a word below cmd that is no command.
func noSuchCommand(cmd *cobra.Command, word string) error {
	return &usageError{fmt.Errorf("unknown command %q for %q%s", word, cmd.CommandPath(), meant(cmd, word))}
}

// meant is the command that somebody may have meant by an unknown word: a near
// one, or one of that name in another place.
func meant(cmd *cobra.Command, word string) string {
	if near := cmd.SuggestionsFor(word); len(near) > 0 {
		return fmt.Sprintf("; did you mean %s %s?", cmd.CommandPath(), near[0])
	}
	for _, p := range purposes {
		for _, name := range p.commands {
			if strings.HasSuffix(name, " "+word) {
				return fmt.Sprintf("; did you mean %s %s?", cmd.Root().Name(), name)
			}
		}
	}
	return ""
}

// flagError says what is wrong with a flag, in words of the command line.
func flagError(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		value   *pflag.InvalidValueError
	)
	switch {
	case errors.As(err, &value):
		f := value.GetFlag()
		want := map[string]string{
			"duration": "a time span with its unit, such as 5s or 1m30s", "bool": "nothing behind it, or true or false",
			"int": "a whole number", "int64": "a whole number", "float64": "a number such as 0.5",
		}[f.Value.Type()]
		return &usageError{fmt.Errorf("--%s %q: want %s", f.Name, value.GetValue(), want)}
	case errors.As(err, &unknown):
		hint, least := "", 3
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if d := config.Apart(unknown.GetSpecifiedName(), f.Name); d < least {
				hint, least = "; did you mean --"+f.Name+"?", d
			}
		})
		return &usageError{fmt.Errorf("%w%s", err, hint)}
	}
	return &usageError{err}
}
