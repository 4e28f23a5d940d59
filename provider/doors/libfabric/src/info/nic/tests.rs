//! Over a tree like sysfs, and by the calls that the core makes.

use std::ffi::CStr;
use std::os::unix::fs::symlink;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use libc::c_int;

use super::*;

/// A directory like /sys, removed in the end.
struct Sys(PathBuf);

impl Sys {
    fn new() -> Sys {
        static MADE: AtomicUsize = AtomicUsize::new(0);
        let n = MADE.fetch_add(1, Ordering::Relaxed);
        let root = std::env::temp_dir().join(format!("strait-nic-{}-{n}", std::process::id()));
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        Sys(root)
    }

    /// A PCI device, with files.
    fn pci(&self, address: &str, files: &[(&str, &str)]) -> PathBuf {
        let at = self.0.join("devices/pci0000:00").join(address);
        write(&at, files);
        symlink(&at, self.0.join("bus/pci/devices").join(address)).unwrap();
        at
    }

    /// An entry of a class, with the device it is of.
    fn class(&self, class: &str, name: &str, device: Option<&Path>, files: &[(&str, &str)]) -> PathBuf {
        let parent = device.map_or_else(|| self.0.join("devices/virtual"), Path::to_owned);
        let at = parent.join(class).join(name);
        write(&at, files);
        if let Some(device) = device {
            symlink(device, at.join("device")).unwrap();
        }
        let listed = self.0.join("class").join(class);
        fs::create_dir_all(&listed).unwrap();
        symlink(&at, listed.join(name)).unwrap();
        at
    }
}

impl Drop for Sys {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

fn write(at: &Path, files: &[(&str, &str)]) {
    fs::create_dir_all(at).unwrap();
    for (name, text) in files {
        fs::create_dir_all(at.join(name).parent().unwrap()).unwrap();
        fs::write(at.join(name), format!("{text}\n")).unwrap();
    }
}

/// Two network cards, an RDMA card, a GPU, and interfaces without a device.
fn machine() -> Sys {
    let sys = Sys::new();
    let drivers = sys.0.join("drivers");
    let gpu = sys.pci(
        "0000:18:00.0",
        &[
            ("class", "0x030200"),
            ("vendor", "0x10de"),
            ("device", "0x2335"),
            ("revision", "0xa1"),
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
        ],
    );
    fs::create_dir_all(drivers.join("nvidia")).unwrap();
    symlink(drivers.join("nvidia"), gpu.join("driver")).unwrap();
    let down = sys.pci("0000:01:00.0", &[("class", "0x020000"), ("vendor", "0x8086"), ("device", "0x1521")]);
    let up = sys.pci("0000:02:00.0", &[("class", "0x020000"), ("vendor", "0x1af4"), ("device", "0x1041")]);
    let virt = up.join("virtio2");
    let net = |speed: &str, state: &str| {
        [
            ("address", "02:fc:00:00:00:01".to_owned()),
            ("mtu", "1500".to_owned()),
            ("speed", speed.to_owned()),
            ("operstate", state.to_owned()),
            ("type", "1".to_owned()),
        ]
    };
    let refs = |f: &[(&'static str, String)]| f.iter().map(|(n, t)| (*n, t.clone())).collect::<Vec<_>>();
    for (name, device, speed, state) in [
        ("eth0", Some(down.as_path()), "1000", "down"),
        ("eth1", Some(virt.as_path()), "-1", "up"),
        ("dummy0", None, "10", "unknown"),
    ] {
        let files = refs(&net(speed, state));
        let files: Vec<(&str, &str)> = files.iter().map(|(n, t)| (*n, t.as_str())).collect();
        sys.class("net", name, device, &files);
    }
    sys
}

fn with_rdma(sys: &Sys) {
    let card = sys.pci("0000:3b:00.1", &[("class", "0x020700"), ("vendor", "0x15b3"), ("device", "0x101b")]);
    sys.class(
        "infiniband",
        "mlx5_0",
        Some(&card),
        &[
            ("ports/1/rate", "100 Gb/sec (4X EDR)"),
            ("ports/1/state", "4: ACTIVE"),
            ("ports/1/link_layer", "InfiniBand"),
        ],
    );
}

fn place(text: &str) -> Option<Pci> {
    Some(Pci::parse(text).unwrap())
}

#[test]
fn choices() {
    for (text, choice) in [
        ("", Choice::Hinted),
        ("no", Choice::Never),
        ("0", Choice::Never),
        ("AUTO", Choice::Auto),
        ("1", Choice::Auto),
        (" eth0 ", Choice::Named("eth0".into())),
        ("0000:3B:00.0", Choice::Named("0000:3B:00.0".into())),
    ] {
        assert_eq!(Choice::parse(text), choice);
    }
}

#[test]
fn pci_addresses() {
    let full = Pci { domain: 0x10, bus: 0x3b, device: 0x1f, function: 7 };
    assert_eq!(Pci::parse("0010:3b:1f.7"), Some(full));
    assert_eq!(Pci::parse("3B:1F.7"), Some(Pci { domain: 0, ..full }));
    for bad in [
        "",
        "eth0",
        "virtio2",
        "3b:1f",
        "3b:20.0",
        "3b:1f.8",
        "+3b:1f.0",
        "1:2:3b:1f.0",
        "pci0000:3b",
        "0000:+b:00.0",
    ] {
        assert_eq!(Pci::parse(bad), None, "{bad}");
    }
}

#[test]
fn an_interface_is_found_with_its_card() {
    let sys = machine();
    let d = Device::named(&sys.0, "eth1").unwrap();
    assert_eq!((d.name.as_str(), d.pci), ("eth1", place("0000:02:00.0")));
    assert_eq!((d.vendor.as_deref(), d.id.as_deref()), (Some("0x1af4"), Some("0x1041")));
    assert_eq!((d.link.mtu, d.link.speed, d.link.state), (1500, 0, fi::FI_LINK_UP));
    assert_eq!((d.link.address.as_deref(), d.link.network), (Some("02:fc:00:00:00:01"), Some("Ethernet")));
    let d = Device::named(&sys.0, "eth0").unwrap();
    assert_eq!((d.pci, d.link.speed, d.link.state), (place("01:00.0"), 1_000_000_000, fi::FI_LINK_DOWN));
    let d = Device::named(&sys.0, "dummy0").unwrap();
    assert_eq!((d.pci, d.vendor), (None, None), "an interface without a card");
    for missing in ["eth7", "", "/etc", "0000:99:00.0", "."] {
        assert_eq!(Device::named(&sys.0, missing), None, "{missing}");
    }
}

#[test]
fn names_are_resolved_as_programs_do() {
    let sys = machine();
    assert_eq!(Device::named(&sys.0, "../net/eth1").unwrap().name, "../net/eth1");
    with_rdma(&sys);
    let d = Device::named(&sys.0, "../net/eth1").unwrap();
    assert_eq!((d.name.as_str(), d.pci), ("../net/eth1", place("02:00.0")));
    let d = Device::named(&sys.0, "mlx5_0").unwrap();
    assert_eq!((d.pci, d.link.speed, d.link.state), (place("3b:00.1"), 100_000_000_000, fi::FI_LINK_UP));
    assert_eq!(d.link.network, Some("InfiniBand"));
}

#[test]
fn a_card_or_else_an_accelerator_is_chosen() {
    let sys = machine();
    let eth = Device::any(&sys.0).unwrap();
    assert_eq!((eth.name.as_str(), eth.pci), ("eth1", place("02:00.0")), "the one that is up");
    with_rdma(&sys);
    assert_eq!(Device::any(&sys.0).unwrap().name, "mlx5_0");
    fs::remove_dir_all(sys.0.join("class")).unwrap();
    let gpu = Device::any(&sys.0).unwrap();
    assert_eq!((gpu.name.as_str(), gpu.pci), ("0000:18:00.0", place("18:00.0")));
    assert_eq!((gpu.driver.as_deref(), gpu.version.as_deref()), (Some("nvidia"), Some("0xa1")));
    assert_eq!(gpu.link.speed, 504_123_076_923, "16 lanes of 32 GT/s");
    assert_eq!((gpu.link.mtu, gpu.link.network), (0, None));
    fs::remove_file(sys.0.join("bus/pci/devices/0000:18:00.0/driver")).unwrap();
    assert_eq!(Device::any(&sys.0), None, "one that no driver has is not used");
}

/// As inline fi_control and fi_close call them.
fn control(nic: *mut fi::fid_nic, command: c_int, to: *mut *mut fi::fid_nic) -> c_int {
    // SAFETY: a live nic of ours, whose table is full.
    unsafe { ((*(*nic).fid.ops).control.unwrap())(nic.cast(), command, to.cast()) }
}

fn close(nic: *mut fi::fid_nic) -> c_int {
    // SAFETY: as in `control`, and it is not used from now on.
    unsafe { ((*(*nic).fid.ops).close.unwrap())(nic.cast()) }
}

fn describe(nic: *const fi::fid_nic, before: &str, len: usize) -> String {
    let mut text = vec![0u8; len];
    text[..before.len()].copy_from_slice(before.as_bytes());
    // SAFETY: as in `control`; the buffer holds a string.
    let rc = unsafe { ((*(*nic).fid.ops).tostr.unwrap())(nic.cast(), text.as_mut_ptr().cast(), len) };
    assert_eq!(rc, 0);
    CStr::from_bytes_until_nul(&text).unwrap().to_str().unwrap().to_owned()
}

#[test]
fn what_the_core_copies_and_frees() {
    let sys = machine();
    for name in ["eth0", "eth1", "dummy0", "0000:18:00.0"] {
        let device = Device::named(&sys.0, name).unwrap();
        let nic = make(&device).unwrap();
        let mut copy = null_mut();
        assert_eq!(control(nic, fi::FI_DUP, &mut copy), 0);
        assert_eq!(control(nic, fi::FI_DUP, null_mut()), -fi::FI_EINVAL);
        assert_eq!(control(nic, fi::FI_GETWAIT, &mut copy), -fi::FI_ENOSYS);
        let first = describe(nic, "", 4096);
        assert!(first.starts_with("    nic:\n") && first.contains(&format!("name: {name}\n")), "{first}");
        assert_eq!(close(nic), 0);
        // The copy has nothing of what was freed.
        assert_eq!(describe(copy, "", 4096), first);
        let known = device.pci.is_some();
        // SAFETY: the copy is live.
        let (kind, link) = unsafe { ((*(*copy).bus_attr).bus_type, *(*copy).link_attr) };
        assert_eq!(kind == fi::FI_BUS_PCI, known);
        assert_eq!(
            (link.mtu, link.speed, link.state),
            (device.link.mtu, device.link.speed, device.link.state)
        );
        assert_eq!(describe(copy, "head ", 4096), format!("head {first}"));
        assert_eq!(describe(copy, "full", 5), "full", "no byte behind the buffer");
        assert_eq!(close(copy), 0);
    }
}

#[test]
fn a_copy_made_by_the_core_may_lack_attributes() {
    let sys = machine();
    let nic = make(&Device::named(&sys.0, "eth0").unwrap()).unwrap();
    // SAFETY: as ofi_nic_dup copies it: the head, and of the rest what is there.
    let bare = unsafe {
        let bare: *mut fi::fid_nic = libc::calloc(1, size_of::<fi::fid_nic>()).cast();
        (*bare).fid = (*nic).fid;
        bare
    };
    let mut copy = null_mut();
    assert_eq!(control(bare, fi::FI_DUP, &mut copy), 0);
    assert_eq!(describe(bare, "", 100), "    nic:\n");
    for nic in [nic, bare, copy] {
        assert_eq!(close(nic), 0);
    }
}
