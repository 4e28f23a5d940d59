//! Which of several devices is used: the one with the endpoint's address, else the nearest to the GPU of the opening
//! thread, else the nearest to its processors.

use std::fs::{create_dir_all, write};
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use below::Below as _;
use cuda_stand_in::driver::Driver;
use verbs::Options;

use crate::device::{options, set};

/// Where the stand-in's second GPU is.
const GPU: &str = "0000:41:00.0";
const ROOT: &str = "devices/pci0000:3f/0000:3f:01.0";

/// A sysfs with a GPU behind a switch, of NUMA node 0.
struct Tree(PathBuf);

impl Tree {
    fn new(name: &str) -> Tree {
        let root = std::env::temp_dir().join(format!("strait-{name}-{}", std::process::id()));
        let tree = Tree(root);
        let gpu = tree.function(&format!("{ROOT}/0000:40:00.0/0000:40:01.0/{GPU}"), 0);
        create_dir_all(tree.0.join("bus/pci/devices")).expect("a directory");
        symlink(gpu, tree.0.join("bus/pci/devices").join(GPU)).expect("a link");
        tree
    }

    /// A function on the PCI bus.
    fn function(&self, path: &str, node: i32) -> PathBuf {
        let dir = self.0.join(path);
        create_dir_all(&dir).expect("a directory");
        write(dir.join("numa_node"), format!("{node}\n")).expect("a file");
        dir
    }

    /// An RDMA device of such a function, as the stand-in is set up to have it.
    fn device(&self, name: &str, path: &str, node: i32) -> String {
        let dir = self.function(path, node).join("infiniband").join(name);
        create_dir_all(&dir).expect("a directory");
        format!("{name}:sysfs={}", dir.display())
    }

    /// A NUMA node with these processors.
    fn node(&self, number: u32, processors: &str) {
        let dir = self.0.join(format!("devices/system/node/node{number}"));
        create_dir_all(&dir).expect("a directory");
        write(dir.join("cpulist"), format!("{processors}\n")).expect("a file");
    }

    fn options(&self) -> Options {
        Options { sysfs: Some(self.0.clone()), ..options() }
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn chosen(options: &Options, own: IpAddr) -> String {
    verbs::open(options, own).expect("a device").0.about().detail.to_owned()
}

const ELSEWHERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn enter(device: i32) {
    let driver = Driver::start();
    hmem::registry::find_runtimes();
    driver.enter(device);
}

/// Devices from the farthest to the nearest, of which the last is used, and then the one before.
#[test]
fn the_device_nearest_to_the_gpu_in_use_is_used_and_the_text_says_why() {
    let tree = Tree::new("nearest-gpu");
    let all = [
        tree.device("sv0", "devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1),
        tree.device("sv1", "devices/pci0000:60/0000:60:01.0/0000:61:00.0", 0),
        tree.device("sv2", "devices/pci0000:3f/0000:3f:02.0/0000:45:00.0", 0),
        tree.device("sv3", &format!("{ROOT}/0000:44:00.0"), 0),
        tree.device("sv4", &format!("{ROOT}/0000:40:00.0/0000:40:02.0/0000:42:00.0"), 0),
    ];
    set(&all.join(";"), &[]);
    enter(1);
    let of = |device: Option<&str>, own| {
        chosen(&Options { device: device.map(Into::into), ..tree.options() }, own)
    };
    let text = of(None, ELSEWHERE);
    assert!(text.starts_with("sv4 port 1: nearest to GPU 0000:41:00.0, one switch, GID"), "{text}");
    // The endpoint's address comes first, and a device that is named before that.
    let text = of(None, Ipv4Addr::new(10, 1, 0, 2).into());
    assert!(text.starts_with("sv1 port 1: with the endpoint's address, GID"), "{text}");
    let text = of(Some("sv0"), ELSEWHERE);
    assert!(text.starts_with("sv0 port 1, GID"), "{text}");
}

/// Of each two devices the nearer one, by each of what a device and a GPU may have in common.
fn nearer(name: &str, near: (&str, i32), far: (&str, i32)) -> String {
    let tree = Tree::new(name);
    let all = [tree.device("far", far.0, far.1), tree.device("near", near.0, near.1)];
    set(&all.join(";"), &[]);
    enter(1);
    chosen(&tree.options(), ELSEWHERE)
}

#[test]
fn one_root_port_is_nearer_than_one_host_bridge() {
    let near = format!("{ROOT}/0000:44:00.0");
    let text = nearer("nearest-port", (&near, 0), ("devices/pci0000:3f/0000:3f:02.0/0000:45:00.0", 0));
    assert!(text.starts_with("near port 1: nearest to GPU 0000:41:00.0, one root port,"), "{text}");
}

#[test]
fn one_host_bridge_is_nearer_than_one_numa_node() {
    let near = ("devices/pci0000:3f/0000:3f:02.0/0000:45:00.0", 0);
    let text = nearer("nearest-bridge", near, ("devices/pci0000:60/0000:60:01.0/0000:61:00.0", 0));
    assert!(text.starts_with("near port 1: nearest to GPU 0000:41:00.0, one host bridge,"), "{text}");
}

#[test]
fn one_numa_node_is_nearer_than_another_one() {
    let near = ("devices/pci0000:60/0000:60:01.0/0000:61:00.0", 0);
    let text = nearer("nearest-node", near, ("devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1));
    assert!(text.starts_with("near port 1: nearest to GPU 0000:41:00.0, one NUMA node,"), "{text}");
}

#[test]
fn of_devices_that_are_as_near_it_is_the_first_and_no_reason_is_said() {
    let near = ("devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1);
    let text = nearer("nearest-none", near, ("devices/pci0000:90/0000:90:01.0/0000:91:00.0", 1));
    assert!(text.starts_with("far port 1, GID"), "{text}");
}

/// A device that is near, and whose port is down, is not used.
#[test]
fn a_nearer_device_that_is_down_is_refused_and_the_next_one_is_used() {
    let tree = Tree::new("nearest-down");
    let near = tree.device("near", &format!("{ROOT}/0000:40:00.0/0000:40:02.0/0000:42:00.0"), 0);
    let all = [
        format!("{near},down"),
        tree.device("far", "devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1),
        tree.device("next", "devices/pci0000:60/0000:60:01.0/0000:61:00.0", 0),
    ];
    set(&all.join(";"), &[]);
    enter(1);
    let (found, refused) = verbs::open(&tree.options(), ELSEWHERE).expect("a device");
    let text = found.about().detail;
    assert!(text.starts_with("next port 1: nearest to GPU 0000:41:00.0, one NUMA node"), "{text}");
    assert_eq!(refused, ["near: port 1: it is not active"]);
}

/// Without a GPU, or where sysfs does not have it.
fn of_node(name: &str, prepare: impl FnOnce(&Path)) -> String {
    let tree = Tree::new(name);
    let all = [
        tree.device("sv0", "devices/pci0000:80/0000:80:01.0/0000:81:00.0", 1),
        tree.device("sv1", "devices/pci0000:60/0000:60:01.0/0000:61:00.0", 0),
    ];
    tree.node(0, "0-8191");
    tree.node(1, "");
    set(&all.join(";"), &[]);
    prepare(&tree.0);
    chosen(&tree.options(), ELSEWHERE)
}

#[test]
fn without_a_gpu_the_device_of_the_threads_numa_node_is_used() {
    let text = of_node("nearest-thread", |_| {});
    assert!(text.starts_with("sv1 port 1: nearest to the thread, on NUMA node 0, GID"), "{text}");
}

#[test]
fn a_thread_without_a_context_uses_no_gpu() {
    let text = of_node("nearest-context", |_| {
        // Another thread has one.
        std::thread::spawn(|| enter(1)).join().expect("no panic");
    });
    assert!(text.starts_with("sv1 port 1: nearest to the thread, on NUMA node 0, GID"), "{text}");
}

#[test]
fn a_gpu_that_sysfs_does_not_have_does_not_count() {
    let text = of_node("nearest-lost", |root| {
        std::fs::remove_file(root.join("bus/pci/devices").join(GPU)).expect("a link");
        enter(1);
    });
    assert!(text.starts_with("sv1 port 1: nearest to the thread, on NUMA node 0, GID"), "{text}");
}

#[test]
fn a_thread_that_may_run_on_all_nodes_uses_the_first_device() {
    let text = of_node("nearest-all", |root| {
        write(root.join("devices/system/node/node1/cpulist"), "0-3,8-9\n").expect("a file");
    });
    assert!(text.starts_with("sv0 port 1, GID"), "{text}");
}
