//! The layouts of `include/strait_xpu_layout.h`, which says what each word means. A test holds the two
//! together.

/// Of all that is below.
pub const VERSION: u32 = 1;

/// What exported objects are known by to a device.
pub const PROV_ID: u32 = 0x5354_5241;

/// Words of a slot.
pub const SLOT_WORDS: usize = 8;
/// The bit of each word that says in which lap it was written.
pub const LAP_BIT: u32 = 63;
pub(crate) const HIGH_SHIFT: u32 = 56;
pub(crate) const OP_SHIFT: u32 = 48;
pub(crate) const FLAGS_SHIFT: u32 = 32;
pub(crate) const REGION_SHIFT: u32 = 40;
/// A local region that is none.
pub const NO_REGION: u32 = 0xff_ffff;
/// Bytes that a command may have in itself.
pub const INLINE_MAX: u64 = 8;
/// A receive of any peer.
pub const ANY: u32 = u32::MAX;

/// Flags of a command.
pub mod flag {
    /// The bytes are in word 1.
    pub const INLINE_DATA: u16 = 0x01;
    /// Its completion goes into the ring's queue.
    pub const COMPLETION: u16 = 0x02;
    /// Starts when all of this ring before it, to this peer, have completed.
    pub const FENCE: u16 = 0x04;
    /// The signal is added to, not set.
    pub const SIGNAL_ADD: u16 = 0x08;
    /// The signal has 4 bytes.
    pub const SIGNAL_32: u16 = 0x10;
    /// The signal comes after its own put only.
    pub const SIGNAL_WEAK: u16 = 0x20;
    /// Another command follows at once.
    pub const MORE: u16 = 0x40;
    /// Word 5 is remote CQ data.
    pub const CQ_DATA: u16 = 0x80;
    /// All there are.
    pub const ALL: u16 = 0xff;
}

/// In an error word: nothing more is taken or done.
pub const ERROR_ENDED: u64 = 1 << 63;
/// Of a ring: commands are taken up to the bell.
pub const RING_BELL: u32 = 1;

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident ($size:literal) { $($field:ident: $of:ty,)* })*) => {
        $(
            $(#[$doc])*
            #[repr(C)]
            #[derive(Clone, Copy, Debug, Default)]
            #[allow(missing_docs, reason = "the header has them")]
            pub struct $name { $(pub $field: $of,)* }
            const _: () = assert!(size_of::<$name>() == $size);

            impl $name {
                /// As words of memory.
                pub fn words(&self) -> [u64; $size / 8] {
                    // SAFETY: `repr(C)`, all fields are integers, and their sizes add up to the structure's,
                    // as the assertion in the tests and the size above say: no padding, and every pattern of
                    // bits is a value.
                    unsafe { std::mem::transmute::<$name, [u64; $size / 8]>(*self) }
                }
            }
        )*
        const _: () = { $(assert!(0 $(+ size_of::<$of>())* == $size);)* };

        /// Each structure: its name in C, its fields, where they are, and its size. For the test against the
        /// header.
        #[cfg(test)]
        fn all() -> Vec<(&'static str, Vec<(&'static str, usize)>, usize)> {
            vec![$((stringify!($name), vec![$((stringify!($field), std::mem::offset_of!($name, $field)),)*], $size),)*]
        }
    };
}

layouts! {
    /// Written by the device.
    Produced (64) { reserved: u64, bell: u64, seen_consumed: u64, unused: [u64; 5], }
    /// Written by the host.
    Status (64) { consumed: u64, local: u64, done: u64, error: u64, failed: u64, beat: u64, unused: [u64; 2], }
    /// What a device has to know of a ring.
    Ring (64) {
        version: u32, log2_slots: u32, flags: u32, id: u32,
        slots: u64, produced: u64, status: u64, queue: u64, timeout_ns: u64, beat_ns: u64,
    }
    /// An entry of a queue.
    Completion (64) {
        context: u64, what: u64, length: u64, data: u64, tag: u64, source: u64, ticket: u64, commit: u64,
    }
    /// Written by the device.
    QueueRead (64) { read: u64, unused: [u64; 7], }
    /// What a device has to know of a queue.
    Queue (64) {
        version: u32, log2_entries: u32,
        entries: u64, read: u64, timeout_ns: u64, error: u64, format: u64, unused: [u64; 2],
    }
    /// Written by the host.
    CounterHost (64) {
        value: u64, errors: u64, error: u64, timeout_ns: u64, writeback: u64, unused: [u64; 3],
    }
    /// Written by the device.
    CounterDevice (64) { added: u64, errors_added: u64, unused: [u64; 6], }
    /// A region of a peer.
    Peer (32) { mapped: u64, remote: u64, key: u64, length: u64, }
    /// A region of this process.
    Region (32) { base: u64, length: u64, key: u64, unused: u64, }
    /// What a device has to know of a context.
    Context (128) {
        version: u32, rank: u32, peer_count: u32, region_count: u32, ring_count: u32, unused0: u32,
        peers: u64, regions: u64, rings: u64, peer_errors: u64, timeout_ns: u64, unused: [u64; 8],
    }
}

/// Where a field is, in words.
macro_rules! word_of {
    ($name:ident . $field:ident) => {
        std::mem::offset_of!($crate::layout::$name, $field) / 8
    };
}
pub(crate) use word_of;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::Op;

    fn header() -> String {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../include/strait_xpu_layout.h");
        std::fs::read_to_string(file).unwrap()
    }

    /// `PutSignal` as `put_signal`.
    fn snake(name: &str) -> String {
        let mut out = String::new();
        for c in name.chars() {
            if c.is_uppercase() && !out.is_empty() {
                out.push('_');
            }
            out.extend(c.to_lowercase());
        }
        out
    }

    /// The fields of a structure in the header, each with its offset; and its size.
    fn fields(header: &str, name: &str) -> (Vec<(String, usize)>, usize) {
        let begin = format!("struct strait_xpu_{name} {{");
        let body =
            header.split_once(&begin).unwrap_or_else(|| panic!("no {begin}")).1.split_once("};").unwrap().0;
        let (mut out, mut at) = (Vec::new(), 0usize);
        for line in body.lines() {
            let line = line.split("/*").next().unwrap().trim().trim_end_matches(';');
            let Some((of, field)) = line.split_once(' ') else { continue };
            let size = match of {
                "strait_xpu_u64" => 8,
                "strait_xpu_u32" => 4,
                _ => panic!("{name}: a field of another type: {line}"),
            };
            let (field, count) = match field.split_once('[') {
                Some((field, n)) => (field, n.trim_end_matches(']').parse::<usize>().unwrap()),
                None => (field, 1),
            };
            at = at.next_multiple_of(size);
            out.push((field.to_string(), at));
            at += size * count;
        }
        (out, at)
    }

    #[test]
    fn structures_are_the_headers() {
        let header = header();
        for (name, ours, size) in all() {
            let (theirs, total) = fields(&header, &snake(name));
            let ours: Vec<_> = ours.into_iter().map(|(f, at)| (f.to_string(), at)).collect();
            assert_eq!((ours, size), (theirs, total), "{name}");
            let said = format!("STRAIT_XPU_ASSERT(sizeof(struct strait_xpu_{}) == {size});", snake(name));
            assert!(header.contains(&said), "the header lacks: {said}");
        }
    }

    #[test]
    fn constants_are_the_headers() {
        let header = header();
        let value = |name: &str| {
            let line = format!("#define STRAIT_XPU_{name} ");
            let text = header.split_once(&line).unwrap_or_else(|| panic!("no {line}")).1;
            let word = text.split_whitespace().next().unwrap().trim_end_matches(['u', 'L', 'U']);
            match word.strip_prefix("0x") {
                Some(hex) => u64::from_str_radix(hex, 16).unwrap(),
                None => word.parse().unwrap_or_else(|_| panic!("{line}{word}")),
            }
        };
        let ours = [
            ("VERSION", VERSION.into()),
            ("PROV_ID", PROV_ID.into()),
            ("SLOT_WORDS", SLOT_WORDS as u64),
            ("LAP_BIT", LAP_BIT.into()),
            ("HIGH_SHIFT", HIGH_SHIFT.into()),
            ("OP_SHIFT", OP_SHIFT.into()),
            ("FLAGS_SHIFT", FLAGS_SHIFT.into()),
            ("REGION_SHIFT", REGION_SHIFT.into()),
            ("NO_REGION", NO_REGION.into()),
            ("INLINE_MAX", INLINE_MAX),
            ("ANY", ANY.into()),
            ("RING_BELL", RING_BELL.into()),
            ("INLINE_DATA", flag::INLINE_DATA.into()),
            ("COMPLETION", flag::COMPLETION.into()),
            ("FENCE", flag::FENCE.into()),
            ("SIGNAL_ADD", flag::SIGNAL_ADD.into()),
            ("SIGNAL_32", flag::SIGNAL_32.into()),
            ("SIGNAL_WEAK", flag::SIGNAL_WEAK.into()),
            ("MORE", flag::MORE.into()),
            ("CQ_DATA", flag::CQ_DATA.into()),
            ("FLAGS_ALL", flag::ALL.into()),
        ];
        for (name, ours) in ours {
            assert_eq!(value(name), ours, "{name}");
        }
        for op in Op::ALL {
            let name = format!("OP_{}", snake(&format!("{op:?}")).to_uppercase());
            assert_eq!(value(&name), op as u64, "{name}");
        }
        assert!(header.contains("#define STRAIT_XPU_ERROR_ENDED (1ULL << 63)"));
        let ops = header.matches("#define STRAIT_XPU_OP_").count();
        assert_eq!(ops, Op::ALL.len() + 1, "all operations, and OP_SHIFT");
    }
}
