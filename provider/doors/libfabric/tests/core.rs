//! The provider in an installed libfabric, as programs load it: what the core itself copies, frees, filters
//! and prints. `STRAIT_TEST_LIBFABRIC` names another libfabric.so.1. Skipped where there is none.

use std::ffi::{CStr, CString, c_char, c_void};
use std::process::{Command, Output};
use std::ptr::{null, null_mut};

use libc::c_int;
use libfabric_sys::*;

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type Fabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;

/// What the child process is to do, and its exit status then reports.
const ROLE: &str = "STRAIT_TEST_ROLE";

/// Runs this program's test `child` with these variables; `None` if there is no libfabric.
fn run(role: &str, vars: &[(&str, &str)]) -> Option<Output> {
    let own = std::env::current_exe().unwrap();
    let built = own.parent().unwrap().join("libstrait_fi.so");
    let dir = std::env::temp_dir().join(format!("strait-core-{}-{role}", std::process::id()));
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::copy(&built, dir.join("libstrait-fi.so")).unwrap();
    let mut command = Command::new(own);
    for (name, _) in std::env::vars_os().filter(|(n, _)| n.to_string_lossy().starts_with("FI_")) {
        command.env_remove(name);
    }
    command.args(["--exact", "child", "--ignored", "--nocapture"]).env(ROLE, role);
    command.env("FI_PROVIDER_PATH", &dir).env("FI_LOG_LEVEL", "warn").envs(vars.iter().copied());
    let output = command.output().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{role}:\n{out}\n{err}");
    if out.contains("skipped") {
        eprintln!("skipped: no libfabric.so.1 is installed (apt install libfabric1)");
        return None;
    }
    Some(output)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The first PCI device of this machine.
fn device() -> Option<String> {
    let mut all: Vec<_> = std::fs::read_dir("/sys/bus/pci/devices").ok()?.flatten().collect();
    all.sort_by_key(std::fs::DirEntry::file_name);
    Some(all.first()?.file_name().to_str()?.to_owned())
}

#[test]
fn no_device_is_named_unasked() {
    run("none", &[]);
    run("none-hinted", &[("FI_STRAIT_NIC", "no")]);
    let Some(output) = run("none", &[("FI_STRAIT_NIC", "no-such-device")]) else { return };
    let errors = text(&output.stderr);
    assert_eq!(errors.matches("FI_STRAIT_NIC=no-such-device: no such device").count(), 1, "{errors}");
}

#[test]
fn the_core_copies_and_frees_the_device_that_is_named() {
    let Some(device) = device() else {
        eprintln!("skipped: no PCI device in sysfs");
        return;
    };
    run("named", &[("FI_STRAIT_NIC", &device)]);
}

#[test]
fn another_name_on_request() {
    run("alias", &[("FI_STRAIT_ALIAS", "efa9")]);
    run("alias", &[("FI_STRAIT_ALIAS", "efa9"), ("FI_PROVIDER", "efa9")]);
    let Some(output) = run("alias-hidden", &[("FI_STRAIT_ALIAS", "efa9"), ("FI_PROVIDER", "strait")]) else {
        return;
    };
    let errors = text(&output.stderr);
    assert!(errors.contains("goes by the name efa9") && errors.contains("set FI_PROVIDER=efa9"), "{errors}");
    run("own-name", &[("FI_STRAIT_ALIAS", "ofi_rxm")]);
}

struct Core {
    core: libfabric_sys::Core,
    getinfo: GetInfo,
    fabric: Fabric,
}

impl Core {
    fn load() -> Option<Core> {
        let name = std::env::var("STRAIT_TEST_LIBFABRIC").unwrap_or("libfabric.so.1".into());
        let name = CString::new(name).unwrap();
        // SAFETY: libfabric's initialisers are fit to run anywhere, and the functions have these types.
        unsafe {
            let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            if library.is_null() {
                return None;
            }
            let symbol = |name: &CStr| libc::dlsym(library, name.as_ptr());
            let getinfo = symbol(c"fi_getinfo");
            Some(Core {
                core: libfabric_sys::Core::find(Some(getinfo))?,
                getinfo: std::mem::transmute::<*mut c_void, GetInfo>(getinfo),
                fabric: std::mem::transmute::<*mut c_void, Fabric>(symbol(c"fi_fabric")),
            })
        }
    }

    /// The answers of the provider of that name, to hints that `change` has changed.
    fn ask(&self, name: &CStr, change: impl FnOnce(&mut fi_info)) -> *mut fi_info {
        let mut infos = null_mut();
        // SAFETY: hints from the core, whose name it frees, and a place for the answer.
        unsafe {
            let hints = self.core.allocinfo();
            (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
            (*(*hints).ep_attr).type_ = FI_EP_RDM;
            change(&mut *hints);
            let rc = (self.getinfo)(FI_VERSION(1, 17), null(), null(), 0, hints, &mut infos);
            assert!(rc == 0 || rc == -FI_ENODATA, "{rc}");
            (*hints).nic = null_mut();
            self.core.freeinfo(hints);
        }
        infos
    }

    fn free(&self, info: *mut fi_info) {
        // SAFETY: of this core, and freed once.
        unsafe { self.core.freeinfo(info) }
    }
}

#[test]
#[ignore = "started by the others"]
fn child() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let Some(core) = Core::load() else {
        println!("skipped");
        return;
    };
    // SAFETY: what the core answers is valid until it is freed.
    unsafe {
        match role.as_str() {
            "none" | "none-hinted" => {
                let mut nic = fid_nic::default();
                let info = core.ask(c"strait", |h| {
                    if role == "none-hinted" {
                        h.nic = &mut nic;
                    }
                });
                assert!(!info.is_null() && (*info).nic.is_null());
                core.free(info);
            }
            "named" => {
                let info = core.ask(c"strait", |_| {});
                let copy = core.core.dupinfo(info);
                let first = (*info).nic;
                assert!(!first.is_null() && !(*copy).nic.is_null() && (*copy).nic != first);
                let printed = core.core.tostr(info.cast(), FI_TYPE_INFO).unwrap();
                assert!(printed.contains("bus_type: FI_BUS_PCI"), "{printed}");
                assert_eq!(core.core.tostr(copy.cast(), FI_TYPE_INFO).unwrap(), printed);
                core.free(info);
                let nic = &*(*copy).nic;
                assert_eq!((*nic.bus_attr).bus_type, FI_BUS_PCI);
                let name = CStr::from_ptr((*nic.device_attr).name).to_str().unwrap();
                assert_eq!(name, std::env::var("FI_STRAIT_NIC").unwrap());
                assert!(!nic.link_attr.is_null());
                // An answer is good as hints, with the device in it.
                let again = core.ask(c"strait", |h| h.nic = (*copy).nic);
                assert!(!(*again).nic.is_null());
                core.free(again);
                let mut fabric = null_mut();
                assert_eq!((core.fabric)((*copy).fabric_attr, &mut fabric, null_mut()), 0);
                assert_eq!(((*(*fabric).fid.ops).close.unwrap())(fabric.cast()), 0);
                core.free(copy);
            }
            "alias" => {
                assert!(core.ask(c"strait", |_| {}).is_null(), "one name at a time");
                let info = core.ask(c"efa9", |_| {});
                assert!(!info.is_null());
                let fabric_attr = (*info).fabric_attr;
                assert_eq!(CStr::from_ptr((*fabric_attr).prov_name), c"efa9");
                assert_eq!(CStr::from_ptr((*fabric_attr).name), c"strait");
                let mut fabric = null_mut();
                assert_eq!((core.fabric)(fabric_attr, &mut fabric, null_mut()), 0);
                assert_eq!(((*(*fabric).fid.ops).close.unwrap())(fabric.cast()), 0);
                core.free(info);
            }
            "alias-hidden" => assert!(core.ask(c"efa9", |_| {}).is_null()),
            "own-name" => {
                let info = core.ask(c"strait", |_| {});
                assert!(!info.is_null());
                core.free(info);
            }
            other => panic!("{other}"),
        }
    }
}
