//! What moved from release to release, and which release a library is of.

use core::ffi::{CStr, c_int, c_void};

/// Slots of a table of operations: more than any release has.
pub const SLOTS: usize = 32;

/// `UCS_SYS_DEVICE_ID_UNKNOWN`
pub const UNKNOWN_SYS_DEVICE: u8 = 0xff;

/// Answers UCS_ERR_UNSUPPORTED to any call: as a status, as a count, or as a status pointer.
pub extern "C" fn unsupported() -> isize {
    isize::from(crate::UCS_ERR_UNSUPPORTED)
}

/// Answers 0 to any call: success, no, or none.
pub extern "C" fn zero() -> isize {
    0
}

/// Releases between which nothing moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Epoch {
    V1_13,
    V1_14,
    V1_15,
    V1_16,
    V1_17,
    V1_18,
    V1_19,
    V1_20,
    V1_21,
    V1_22,
    V1_23,
}

use Epoch::*;

/// What each release first exported, newest first.
const MARKS: [(Epoch, &[&CStr]); 10] = [
    (V1_23, &[c"uct_ep_get_sgl_zcopy", c"uct_md_mem_elem_release"]),
    (V1_22, &[c"uct_ep_put_sgl_zcopy"]),
    (V1_21, &[c"uct_md_mem_elem_pack"]),
    (V1_20, &[c"uct_iface_mem_element_pack"]),
    (V1_19, &[c"uct_rkey_unpack_v2"]),
    (V1_18, &[c"uct_iface_fill_info_str_buf"]),
    (V1_17, &[c"uct_md_base_md_query"]),
    (V1_16, &[c"uct_rkey_compare"]),
    (V1_15, &[c"ucs_topo_get_memory_distance"]),
    (V1_14, &[c"uct_ep_connect_to_ep_v2"]),
];

/// Exported since 1.13 (`uct_ep_invalidate`, `uct_iface_estimate_perf` and `uct_ep_query` came with
/// it).
const OLDEST: &[&CStr] = &[c"uct_ep_invalidate", c"uct_iface_estimate_perf", c"uct_ep_query"];

impl Epoch {
    pub const ALL: [Epoch; 11] =
        [V1_13, V1_14, V1_15, V1_16, V1_17, V1_18, V1_19, V1_20, V1_21, V1_22, V1_23];

    /// The epoch of a library, by what it exports; `None` if it is older than 1.13.
    pub fn of(exports: impl Fn(&CStr) -> bool) -> Option<Epoch> {
        let any = |names: &[&CStr]| names.iter().any(|name| exports(name));
        match MARKS.iter().find(|(_, names)| any(names)) {
            Some((epoch, _)) => Some(*epoch),
            None => OLDEST.iter().all(|name| exports(name)).then_some(V1_13),
        }
    }

    /// The release as people write it.
    pub fn name(self) -> &'static str {
        ["1.13", "1.14", "1.15", "1.16", "1.17", "1.18", "1.19", "1.20", "1.21", "1.22", "1.23"]
            [self as usize]
    }

    /// Whether its UCX looks for transports in UCX_PLUGIN_PATH; older ones need to be preloaded.
    pub fn has_plugin_path(self) -> bool {
        self >= V1_22
    }

    pub fn layout(self) -> Layout {
        Layout {
            epoch: self,
            entry: if self >= V1_15 { 56 } else { 48 },
            rkey_compare: self >= V1_16,
            md_attr: MdAttr::of(self),
            mem_attach: self >= V1_14,
            sockaddr: self <= V1_15,
            query_v2: self == V1_20 || self >= V1_22,
            element_pack: self == V1_20,
            path_bandwidth: self >= V1_19,
        }
    }
}

/// Where md attributes are: what `uct_md_ops_t::query` is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MdAttr {
    pub max_alloc: usize,
    pub max_reg: usize,
    pub flags: usize,
    pub reg_mem_types: usize,
    pub cache_mem_types: Option<usize>,
    pub alloc_mem_types: usize,
    pub access_mem_types: usize,
    pub reg_cost: usize,
    pub rkey_packed_size: usize,
    pub local_cpus: usize,
    pub reg_alignment: Option<usize>,
    /// First byte that is ours to write, and the end of the structure.
    pub begin: usize,
    pub end: usize,
}

/// Bytes of `ucs_cpu_set_t`.
pub(crate) const CPU_SET: usize = 128;

impl MdAttr {
    fn of(epoch: Epoch) -> MdAttr {
        // Bitmaps that came in between shift what follows by 8 bytes each.
        let (shift, end, align) = match epoch {
            V1_13 => {
                return MdAttr {
                    max_alloc: 0,
                    max_reg: 8,
                    flags: 16,
                    reg_mem_types: 24,
                    cache_mem_types: None,
                    alloc_mem_types: 40,
                    access_mem_types: 48,
                    reg_cost: 56,
                    rkey_packed_size: 88,
                    local_cpus: 96,
                    reg_alignment: None,
                    begin: 0,
                    end: 224,
                };
            }
            V1_14 => (0, 512, None),
            V1_15 => (8, 520, None),
            V1_16 | V1_17 => (8, 528, Some(520)),
            V1_18 | V1_19 | V1_20 | V1_21 => (16, 536, Some(528)),
            V1_22 | V1_23 => (16, 544, Some(528)),
        };
        let cache = if shift == 0 { 40 } else { 48 };
        MdAttr {
            max_alloc: 8,
            max_reg: 16,
            flags: 24,
            reg_mem_types: 32,
            cache_mem_types: Some(cache),
            alloc_mem_types: 56 + shift,
            access_mem_types: 64 + shift,
            reg_cost: 80 + shift,
            rkey_packed_size: 112 + shift,
            local_cpus: 120 + shift,
            reg_alignment: align,
            begin: 8,
            end,
        }
    }
}

/// Offsets and slots of one epoch.
#[derive(Clone, Copy, Debug)]
pub struct Layout {
    pub epoch: Epoch,
    /// Bytes of `ucs_config_global_list_entry_t`.
    pub entry: usize,
    rkey_compare: bool,
    pub md_attr: MdAttr,
    mem_attach: bool,
    sockaddr: bool,
    query_v2: bool,
    element_pack: bool,
    /// Whether performance attributes have `path_bandwidth`, right behind `bandwidth`.
    pub path_bandwidth: bool,
}

/// The functions of a component.
#[derive(Clone, Copy, Debug)]
pub struct ComponentOps {
    pub query_md_resources: *const c_void,
    pub md_open: *const c_void,
    pub rkey_unpack: *const c_void,
    pub rkey_ptr: *const c_void,
    pub rkey_release: *const c_void,
    pub rkey_compare: *const c_void,
}

/// The functions of a memory domain.
#[derive(Clone, Copy, Debug)]
pub struct MdOps {
    pub close: *const c_void,
    pub query: *const c_void,
    pub mem_alloc: *const c_void,
    pub mem_free: *const c_void,
    pub mem_reg: *const c_void,
    pub mem_dereg: *const c_void,
    pub mkey_pack: *const c_void,
}

/// The internal functions of an interface.
#[derive(Clone, Copy, Debug)]
pub struct InternalOps {
    pub query_v2: *const c_void,
    pub estimate_perf: *const c_void,
    pub is_reachable_v2: *const c_void,
    pub ep_is_connected: *const c_void,
}

/// A configuration table as UCX lists it.
#[derive(Clone, Copy, Debug)]
pub struct ConfigEntry {
    pub name: *const c_void,
    pub prefix: *const c_void,
    pub table: *const c_void,
    pub size: usize,
}

/// A table of operations.
pub type Table = [*const c_void; SLOTS];

fn table() -> Table {
    [unsupported as *const c_void; SLOTS]
}

impl Layout {
    /// Offset of `uct_component_t::md_config`.
    pub fn md_config(&self) -> usize {
        if self.rkey_compare { 72 } else { 64 }
    }

    /// Offset of `uct_component_t::tl_list`.
    pub fn tl_list(&self) -> usize {
        self.md_config() + 2 * self.entry
    }

    /// Bytes of `uct_component_t`.
    pub fn component_size(&self) -> usize {
        // Two list links, flags, and the function that describes it in UCX's file system.
        self.tl_list() + 2 * 16 + 8 + 8
    }

    /// Offset of `uct_tl_t::list`.
    pub fn tl_link(&self) -> usize {
        32 + self.entry
    }

    /// Bytes of `uct_tl_t`.
    pub fn tl_size(&self) -> usize {
        self.tl_link() + 16
    }

    /// A `uct_component_t` as words; the caller links `tl_list` to itself.
    pub fn component(&self, name: &[u8], ops: &ComponentOps, config: &ConfigEntry) -> Vec<u64> {
        let mut out = vec![0u64; self.component_size() / 8];
        put_name(&mut out[..2], name);
        let fns = [
            ops.query_md_resources,
            ops.md_open,
            unsupported as *const c_void,
            ops.rkey_unpack,
            ops.rkey_ptr,
        ];
        let tail = self.rkey_compare.then_some(ops.rkey_compare);
        let all = fns.into_iter().chain([ops.rkey_release]).chain(tail);
        for (to, f) in out[2..].iter_mut().zip(all) {
            *to = f as u64;
        }
        let at = self.md_config() / 8;
        put_entry(&mut out[at..], config);
        let empty = ConfigEntry { table: core::ptr::null(), size: 0, ..*config };
        put_entry(&mut out[at + self.entry / 8..], &empty);
        *out.last_mut().expect("not empty") = zero as *const c_void as u64;
        out
    }

    /// A `uct_tl_t` as words.
    pub fn tl(
        &self,
        name: &[u8],
        query_devices: *const c_void,
        iface_open: *const c_void,
        config: &ConfigEntry,
    ) -> Vec<u64> {
        let mut out = vec![0u64; self.tl_size() / 8];
        put_name(&mut out[..2], &name[..name.len().min(crate::UCT_TL_NAME_MAX - 1)]);
        out[2] = query_devices as u64;
        out[3] = iface_open as u64;
        put_entry(&mut out[4..], config);
        out
    }

    pub fn md_ops(&self, ops: &MdOps) -> Table {
        let none = unsupported as *const c_void;
        let mut out = table();
        // mem_advise, mem_query and mem_attach are not done.
        let start = [
            ops.close,
            ops.query,
            ops.mem_alloc,
            ops.mem_free,
            none,
            ops.mem_reg,
            ops.mem_dereg,
            none,
            ops.mkey_pack,
        ];
        out[..start.len()].copy_from_slice(&start);
        if self.sockaddr {
            // is_sockaddr_accessible answers yes or no.
            out[start.len() + usize::from(self.mem_attach)] = zero as *const c_void;
        }
        out
    }

    pub fn internal_ops(&self, ops: &InternalOps) -> Table {
        let mut out = table();
        let mut at = 0;
        let mut put = |f: *const c_void| {
            out[at] = f;
            at += 1;
        };
        if self.query_v2 {
            put(ops.query_v2);
        }
        put(ops.estimate_perf);
        put(zero as *const c_void); // iface_vfs_refresh
        if self.element_pack {
            put(unsupported as *const c_void);
        }
        put(unsupported as *const c_void); // ep_query
        put(unsupported as *const c_void); // ep_invalidate
        put(unsupported as *const c_void); // ep_connect_to_ep_v2
        put(ops.is_reachable_v2);
        put(ops.ep_is_connected);
        out
    }

    /// Where internal operations have `iface_estimate_perf`.
    pub fn estimate_perf_slot(&self) -> usize {
        usize::from(self.query_v2)
    }

    /// Where internal operations have `ep_is_connected`, if they do.
    pub fn is_connected_slot(&self) -> Option<usize> {
        (self.epoch >= V1_16).then_some(6 + usize::from(self.query_v2) + usize::from(self.element_pack))
    }

    /// Writes attributes of a memory domain; all that is not named becomes 0.
    ///
    /// # Safety
    /// `attr` must be valid for writes of the epoch's structure.
    pub unsafe fn write_md_attr(&self, attr: *mut c_void, a: &MdValues) {
        let l = &self.md_attr;
        let attr = attr.cast::<u8>();
        let put = |at: usize, v: u64| {
            // SAFETY: inside the structure, by the table; the caller says that it is valid.
            unsafe { attr.add(at).cast::<u64>().write_unaligned(v) }
        };
        // SAFETY: as above.
        unsafe {
            attr.add(l.begin).write_bytes(0, l.end - l.begin);
            attr.add(l.local_cpus).write_bytes(0xff, CPU_SET);
        }
        put(l.max_alloc, a.max_alloc);
        put(l.max_reg, a.max_reg);
        put(l.flags, a.flags);
        put(l.reg_mem_types, a.reg_mem_types);
        put(l.alloc_mem_types, a.alloc_mem_types);
        put(l.access_mem_types, a.access_mem_types);
        put(l.reg_cost, a.reg_cost.c.to_bits());
        put(l.reg_cost + 8, a.reg_cost.m.to_bits());
        put(l.rkey_packed_size, a.rkey_packed_size);
        if let Some(at) = l.cache_mem_types {
            put(at, a.cache_mem_types);
        }
        if let Some(at) = l.reg_alignment {
            put(at, 1);
        }
    }
}

/// What a memory domain says of itself.
#[derive(Clone, Copy, Debug, Default)]
pub struct MdValues {
    pub max_alloc: u64,
    pub max_reg: u64,
    pub flags: u64,
    pub reg_mem_types: u64,
    pub cache_mem_types: u64,
    pub alloc_mem_types: u64,
    pub access_mem_types: u64,
    pub reg_cost: crate::Linear,
    pub rkey_packed_size: u64,
}

/// Writes a name of at most 15 characters and its end to 16 bytes.
fn put_name(out: &mut [u64], name: &[u8]) {
    let mut bytes = [0u8; 16];
    for (to, from) in bytes[..15].iter_mut().zip(name) {
        *to = *from;
    }
    out[0] = u64::from_ne_bytes(bytes[..8].try_into().expect("8 bytes"));
    out[1] = u64::from_ne_bytes(bytes[8..].try_into().expect("8 bytes"));
}

fn put_entry(out: &mut [u64], entry: &ConfigEntry) {
    out[..4].copy_from_slice(&[
        entry.name as u64,
        entry.prefix as u64,
        entry.table as u64,
        entry.size as u64,
    ]);
}

/// What a status pointer, a count and a C int all read as UCS_ERR_UNSUPPORTED.
const _: () = assert!(crate::UCS_ERR_UNSUPPORTED as c_int == -22);

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes and offsets that a C compiler gave for each release's headers, in the order of
    /// `Epoch::ALL`.
    #[test]
    fn layouts_are_those_of_the_headers() {
        let sizes = |f: fn(&Layout) -> usize| Epoch::ALL.map(|e| f(&e.layout()));
        assert_eq!(sizes(Layout::component_size), [208, 208, 224, 232, 232, 232, 232, 232, 232, 232, 232]);
        assert_eq!(sizes(Layout::tl_list), [160, 160, 176, 184, 184, 184, 184, 184, 184, 184, 184]);
        assert_eq!(sizes(Layout::tl_size), [96, 96, 104, 104, 104, 104, 104, 104, 104, 104, 104]);
        assert_eq!(sizes(|l| l.md_attr.end), [224, 512, 520, 528, 528, 536, 536, 536, 536, 544, 544]);
        assert_eq!(sizes(|l| l.md_attr.access_mem_types), [48, 64, 72, 72, 72, 80, 80, 80, 80, 80, 80]);
        assert_eq!(
            sizes(|l| l.md_attr.rkey_packed_size),
            [88, 112, 120, 120, 120, 128, 128, 128, 128, 128, 128]
        );
        assert_eq!(sizes(|l| l.md_attr.local_cpus), [96, 120, 128, 128, 128, 136, 136, 136, 136, 136, 136]);
        assert_eq!(sizes(|l| l.md_attr.reg_cost), [56, 80, 88, 88, 88, 96, 96, 96, 96, 96, 96]);
        assert_eq!(sizes(Layout::estimate_perf_slot), [0, 0, 0, 0, 0, 0, 0, 1, 0, 1, 1]);
        assert_eq!(sizes(|l| l.is_connected_slot().unwrap_or(0)), [0, 0, 0, 6, 6, 6, 6, 8, 6, 7, 7]);
    }

    #[test]
    fn a_release_is_identified_by_what_it_exports() {
        for (i, (epoch, names)) in MARKS.iter().enumerate() {
            // Every release has also what the ones before it had.
            let exports = |name: &CStr| {
                MARKS[i + 1..].iter().any(|(_, n)| n.contains(&name))
                    || name == names[0]
                    || OLDEST.contains(&name)
            };
            assert_eq!(Epoch::of(exports), Some(*epoch));
        }
        assert_eq!(Epoch::of(|name| OLDEST.contains(&name)), Some(V1_13));
        assert_eq!(Epoch::of(|name| name == OLDEST[0]), None);
        assert_eq!(Epoch::of(|_| false), None);
    }

    #[test]
    fn attributes_stay_inside_and_fill_all() {
        for epoch in Epoch::ALL {
            let layout = epoch.layout();
            let mut room = vec![0xaau8; layout.md_attr.end + 64];
            let values =
                MdValues { flags: 3, access_mem_types: 1, rkey_packed_size: 32, ..MdValues::default() };
            // SAFETY: there is more room than the structure has.
            unsafe { layout.write_md_attr(room.as_mut_ptr().cast(), &values) };
            assert!(room[layout.md_attr.end..].iter().all(|b| *b == 0xaa), "{epoch:?}");
            assert!(room[..layout.md_attr.begin].iter().all(|b| *b == 0xaa), "{epoch:?}");
            assert!(room[layout.md_attr.begin..layout.md_attr.end].iter().all(|b| *b != 0xaa), "{epoch:?}");
            assert_eq!(room[layout.md_attr.access_mem_types], 1);
        }
    }
}
