// Package codes is CNI's error codes and CHECK's reason codes as data.
package codes

// Code is one CNI error code (CNI spec 1.1.0, "Error"; 100 and up are ours).
type Code struct {
	Number  uint
	Name    string // error.type of the span
	Meaning string
	Hint    string // what an operator does next; empty where the message says it all
}

// The numbers that the plugin answers.
const (
	Version     = 1
	Unsupported = 2
	Environment = 4
	IO          = 5
	Decode      = 6
	Config      = 7
	OwnNetNS    = 8
	TryLater    = 11
	Unavailable = 50
	Limited     = 51
	Exhausted   = 100
	Taken       = 101
	Exists      = 102
	Conflict    = 103
	Kernel      = 104
	Plugin      = 105
	Duplicate   = 106
	NotReady    = 107
	Check       = 110
	Internal    = 999
)

// Table is every code that the plugin answers, by number.
var Table = []Code{
	{Version, "incompatible version", "the configuration's cniVersion is not served, or cannot hold the result", "see the plugin's VERSION for the list"},
	{Unsupported, "unsupported field", "a key of the configuration asks for something that this version does not do", "take the key out, or update tracewire"},
	{Environment, "invalid environment", "a CNI_* variable is missing or wrong, CNI_NETNS and CNI_ARGS included", "the runtime sets them: look at its log"},
	{IO, "input/output failure", "a file or folder of state cannot be read or written, or others may write to it", "look at the disk and the folder's owner and mode"},
	{Decode, "not decodable", "standard input is not one JSON document of at most 4 MiB", "look at the configuration list on disk"},
	{Config, "invalid configuration", "a key of the configuration has a wrong value, or is unknown", "mend the key that the message names"},
	{OwnNetNS, "own network namespace", "CNI_NETNS is the plugin's own network namespace", "set CNI_NETNS_OVERRIDE=1 if that is meant"},
	{TryLater, "try again later", "a lock was held too long, the operation's time ran out, or DEL could not remove everything", "the message says what stood in the way; the runtime tries again"},
	{Unavailable, "not available", "STATUS: the next ADD would fail", "the message says what stands in its way; the runtime asks again"},
	{Limited, "limited connectivity", "STATUS: as 50, and by a plugin's own word the network's pods may have limited connectivity", "the message has its own words"},
	{Exhausted, "addresses exhausted", "no address is free in a range set", "the message has the figures; a larger range, or look for addresses without a pod"},
	{Taken, "address taken", "the address that was asked for is not free", "the message names the holder"},
	{Exists, "exists", "the attachment, or an interface of that name, is there already", "DEL first; the message names the owner"},
	{Conflict, "bridge conflict", "the bridge is not a bridge, or has another address or MTU than it should", "name another bridge, take the address away or set forceAddress, or use the same mtu, or a bridge that filters VLANs"},
	{Kernel, "kernel refused", "the kernel refused a change", "the message has the kernel's own words"},
	{Plugin, "delegated plugin failed", "an IPAM plugin or a delegate failed, is missing, or answered nonsense", "the message has its own words"},
	{Duplicate, "duplicate address", "another host on the segment has the IPv6 address", "find that host; the address was given back"},
	{NotReady, "interface not ready", "what was made did not come up as it should: the pod's interface, or the bridge's port", "look at spanning tree and at what else sets up interfaces on the node"},
	{Check, "check found differences", "the attachment is not as ADD made it", "the details list them; where they say reconcile, DEL and a new ADD mend it"},
	{Internal, "internal error", "a mistake of tracewire itself", "please report it with the span's exception"},
}

// Of is the code of a number, and false for one that is not in the Table.
func Of(number uint) (Code, bool) {
	for _, c := range Table {
		if c.Number == number {
			return c, true
		}
	}
	return Code{}, false
}
