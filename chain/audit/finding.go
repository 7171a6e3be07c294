package audit

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/tracewire/tracewire/conflist"
	"github.com/tracewire/tracewire/delegates"
)

// Version is the schema's of findings as JSON (docs/audit.md). What is added
// to it later keeps the number.
const Version = 1

// Kind is what is wrong.
type Kind string

// The kinds; Kinds says what each is.
const (
	LeakedAddress                Kind = "leaked-address"
	ReservationWithoutAttachment Kind = "reservation-without-attachment"
	AttachmentWithoutReservation Kind = "attachment-without-reservation"
	DuplicateAddress             Kind = "duplicate-address"
	EmptyReservation             Kind = "empty-reservation"
	OrphanVeth                   Kind = "orphan-veth"
	UnknownOwner                 Kind = "unknown-owner"
	StaleRecord                  Kind = "stale-record"
	InterruptedOperation         Kind = "interrupted-operation"
	EarlierBoot                  Kind = "earlier-boot"
	BrokenRecord                 Kind = "broken-record"
	NamespaceChanged             Kind = "namespace-changed"
	BrokenLibcniEntry            Kind = "broken-libcni-entry"
	StaleLibcniEntry             Kind = "stale-libcni-entry"
	StaleMasquerade              Kind = "stale-masquerade"
	StalePortmap                 Kind = "stale-portmap"
	Drift                        Kind = "drift"
)

// Severity is how bad it is.
type Severity string

// The severities. An error keeps something from working, or will.
const (
	Warning Severity = "warning"
	Error   Severity = "error"
)

// Kinds is every kind, how bad it is, what is wrong then, and what a repair does.
var Kinds = []struct {
	Kind     Kind
	Severity Severity
	Meaning  string
	Mended   string
}{
	{LeakedAddress, Error, "a reservation whose container nobody knows",
		"DEL, in a store of ours whose network's configuration is known, while no interface of any namespace has the address"},
	{ReservationWithoutAttachment, Warning, "a reservation whose container somebody knows, while no interface has the address",
		"the address is given back to the pod where the record has it; the file is removed, in a store of ours, where the record has others; else reported: who knows the container comes first, its DEL or the end of a stale entry"},
	{AttachmentWithoutReservation, Error, "an attachment that lives and has no reservation: its address may be given to another",
		"the reservation is written again, in a store of ours, if the attachment still lives and has the address"},
	{DuplicateAddress, Error, "an address that two of one network have: interfaces, records, or a record and a reservation",
		"reported"},
	{EmptyReservation, Error, "a reservation file that keeps an address and names nobody",
		"in a store of ours it names the attachment again that lives and has the address; where no interface has it the file is removed, if it still names nobody"},
	{OrphanVeth, Warning, "an interface of ours on the host without a record, or a port whose other end is gone",
		"the record is written again where libcni's entry tells of it and the pod lives; DEL where nobody knows the container, and no process is in the namespace that it leads to: where not the whole machine's are seen, the runtime has to be asked; else reported"},
	{UnknownOwner, Warning, "a port of a network's bridge that leads into another namespace, or a file in a store, that nobody explains",
		"reported"},
	{StaleRecord, Warning, "a record of this boot that says attached, while its namespace or its host end is gone",
		"DEL; reported where processes are in the namespace that ADD was given"},
	{InterruptedOperation, Warning, "a record of an ADD or DEL that did not end, and that no plugin is at work for",
		"DEL; where libcni's entry tells that its ADD ended, and the namespace is there, the record lost its end: it is moved to quarantine and written again, else reported, as it is while processes are in the namespace"},
	{EarlierBoot, Warning, "a record of an earlier boot",
		"DEL"},
	{BrokenRecord, Warning, "a record that cannot be read",
		"DEL, where nothing of the attachment lives and the network is ours; else it is moved to quarantine, and written again from libcni's entry"},
	{NamespaceChanged, Error, "a record whose path leads to another network namespace by now",
		"DEL without a namespace; reported where processes are in the one that ADD was given"},
	{BrokenLibcniEntry, Error, "an entry of libcni's cache that libcni cannot read",
		"it is removed, where its name begins with a network of ours, or the runtime was asked: while it is there a runtime's DEL fails"},
	{StaleLibcniEntry, Warning, "an entry of libcni's cache whose namespace is gone, and its sandbox, as far as the runtime was asked",
		"DEL and then it is removed, where the network is ours and no interface has one of its addresses; of another's network it is removed where the runtime was asked and nothing is left of the attachment; none while a record, an interface, or an address that is reserved for it and that an interface has, speaks for it"},
	{StaleMasquerade, Warning, "masquerade rules of ours or of the reference plugins whose attachment is gone",
		"where the network is ours a rule of nf_tables is deleted, a chain goes by DEL, and our table is deleted under the network's lock while no attachment of it has a record"},
	{StalePortmap, Warning, "rules of the portmap plugin whose attachment is gone",
		"DEL of portmap, where a list with tracewire, which the node, libcni or a record has, has portmap for the network; else reported"},
	{Drift, Error, "a difference that CHECK found",
		"what ADD made and that is gone, or is another by now, is put right by a CHECK that is asked to (docs/check.md); the rest is reported, and all of a pod whose address another interface has"},
}

// severity is a kind's.
func (k Kind) severity() Severity {
	for _, row := range Kinds {
		if row.Kind == k {
			return row.Severity
		}
	}
	return Warning
}

// Source is who was asked.
type Source string

// The sources.
const (
	Records    Source = "records"
	Quarantine Source = "quarantine"
	Libcni     Source = "libcni"
	IPAM       Source = "ipam"
	Kernel     Source = "kernel"
	Rules      Source = "rules"
	Namespaces Source = "namespaces"
	Runtime    Source = "runtime"
	Processes  Source = "processes" // what seems to work for no pod
	Check      Source = "check"
)

// Evidence is what one source says of a finding.
type Evidence struct {
	Source Source `json:"source"`
	Says   string `json:"says"`
}

// Finding is one thing that is wrong. What it is about is in the fields that
// are not zero.
type Finding struct {
	// ID is the same as long as the very thing is there: a file that was written
	// anew, or an interface that was made again, has another.
	ID         string                `json:"id"`
	Kind       Kind                  `json:"kind"`
	Severity   Severity              `json:"severity"`
	Network    string                `json:"network,omitempty"`
	Attachment *delegates.Attachment `json:"attachment,omitempty"` // what is not known of it is ""
	Pod        string                `json:"pod,omitempty"`        // "default/web-0", where ADD was told
	Address    netip.Addr            `json:"address,omitzero"`
	Interface  string                `json:"interface,omitempty"` // of the host
	Path       string                `json:"path,omitempty"`      // a file, or a table or chain of rules
	Evidence   []Evidence            `json:"evidence"`
	Since      time.Time             `json:"since,omitzero"` // of the file or record; clocks step
	Fix        string                `json:"fix,omitempty"`  // what a repair would do
	Why        string                `json:"why,omitempty"`  // it is only reported, where Fix is empty
	Repair     *Repair               `json:"repair,omitempty"`
}

// About is what the finding is about, in one word.
func (f Finding) About() string {
	switch {
	case f.Address.IsValid():
		return f.Address.String()
	case f.Attachment != nil && f.Attachment.ContainerID != "":
		return strings.TrimSuffix(f.Attachment.String(), ":") // the interface's name may not be known
	case f.Interface != "":
		return f.Interface
	}
	return f.Path
}

// identify gives the finding its severity and its ID. stamps is what changes
// when the thing is made anew.
func (f Finding) identify(stamps ...string) Finding {
	f.Severity = f.Kind.severity()
	words := []string{string(f.Kind), f.Network, f.Interface, f.Path, f.Address.String()}
	if f.Attachment != nil {
		words = append(words, f.Attachment.String())
	}
	sum := sha256.Sum256([]byte(strings.Join(append(words, stamps...), "\x00")))
	f.ID = hex.EncodeToString(sum[:8])
	return f
}

// says adds what a source says.
func (f *Finding) says(s Source, what string) {
	f.Evidence = append(f.Evidence, Evidence{s, what})
}

// Unread is a source that could not be looked at: what it knows is not in the
// findings.
type Unread struct {
	Source Source `json:"source"`
	Path   string `json:"path,omitempty"`
	Err    error  `json:"-"`
}

// MarshalJSON implements json.Marshaler: the error as its text.
func (u Unread) MarshalJSON() ([]byte, error) {
	type plain Unread
	text := ""
	if u.Err != nil {
		text = u.Err.Error()
	}
	return json.Marshal(struct {
		plain
		Error string `json:"error"`
	}{plain(u), text})
}

// Error implements error.
func (u Unread) Error() string {
	s := string(u.Source)
	if u.Path != "" {
		s += ": " + u.Path
	}
	return s + ": " + u.Err.Error()
}

// Unwrap is the cause.
func (u Unread) Unwrap() error { return u.Err }

// Action is what a repair does.
type Action string

// The actions. Del, EndEntry and Restore are for who has the plugin: it is run as
// a runtime runs it. The others are Node.Mend's.
const (
	Del               Action = "del"                // DEL of Attachment with Conf, Args and NetNS, if Path still has Stamp
	EndEntry          Action = "end-libcni-entry"   // Del, then RemoveEntry
	Restore           Action = "restore"            // CHECK of Attachment that puts right what it finds
	RemoveReservation Action = "remove-reservation" // of Address, the file Path: of nobody, or of Attachment, which has another
	Reserve           Action = "reserve"            // Address for Attachment in the store Path
	QuarantineRecord  Action = "quarantine-record"  // Path, then WriteRecord where libcni keeps enough for it
	WriteRecord       Action = "write-record"       // of Attachment, from libcni's entry Path
	RemoveEntry       Action = "remove-libcni-entry"
	RemoveRule        Action = "remove-rule"  // the reference plugins' of nf_tables whose comment Path is
	RemoveTable       Action = "remove-table" // ours, whose name Path is, of Attachment's network
)

// Repair is what mends a finding. Two that are equal are one.
type Repair struct {
	Action     Action               `json:"action"`
	Attachment delegates.Attachment `json:"attachment,omitzero"`
	Conf       string               `json:"-"`               // network configuration of a DEL, JSON; it may hold secrets
	Args       string               `json:"args,omitempty"`  // CNI_ARGS of a DEL
	NetNS      string               `json:"netns,omitempty"` // CNI_NETNS of a DEL; empty where that namespace is gone
	Path       string               `json:"path,omitempty"`
	Address    netip.Addr           `json:"address,omitzero"`
	Stamp      string               `json:"stamp,omitempty"` // of the file, or the rules, that were looked at: others are left alone
}

// words is the fix in one sentence.
func (r Repair) words() string {
	switch r.Action {
	case Del:
		return "run " + r.plugin() + "'s DEL for " + r.Attachment.String()
	case EndEntry:
		return "run the plugin's DEL for " + r.Attachment.String() + ", and remove libcni's entry"
	case Restore:
		return "put right what CHECK finds of " + r.Attachment.String()
	case RemoveReservation:
		return "remove the reservation file of " + r.Address.String() + " under the store's lock"
	case Reserve:
		return "reserve " + r.Address.String() + " for " + r.Attachment.ContainerID + " again"
	case QuarantineRecord:
		return "move the record to quarantine, and write it again from libcni's entry where the pod lives"
	case WriteRecord:
		return "write the record again from libcni's entry"
	case RemoveEntry:
		return "remove libcni's entry"
	case RemoveRule:
		return "delete the rule " + strconv.Quote(r.Path)
	case RemoveTable:
		return "delete the table " + r.Path
	}
	return ""
}

// plugin is whose DEL a Repair is, in words.
func (r Repair) plugin() string {
	if name := r.Plugin(); name != conflist.PluginType {
		return name
	}
	return "the plugin"
}

// Plugin is the type of the plugin whose DEL it is.
func (r Repair) Plugin() string {
	return cmp.Or(conflist.Read([]byte(r.Conf)).At("type").Text(), conflist.PluginType)
}

// mendedBy gives the finding its repair.
func (f Finding) mendedBy(r Repair) Finding {
	f.Repair, f.Fix = &r, r.words()
	return f
}

// reported says why there is none.
func (f Finding) reported(why string) Finding {
	f.Why = why
	return f
}
