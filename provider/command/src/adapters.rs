//! RDMA devices: which memory each registers, and which call or attribute refuses the rest.

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;

use hmem::Kind;
use rdma_sys::{
    Access, CmLibrary, Context, Device, Dmabuf, Error, Library, PEER_MEMORY, Pd, has_peer_memory,
};

use crate::storage::cuda;

/// Where Linux lists them, whether libibverbs is there or not.
const SYSFS: &str = "/sys/class/infiniband";
/// What is registered of a GPU's memory, and let go of.
const LEN: usize = 64 << 10;
/// The same of the host's: twice, as an endpoint does for what it sends and what it receives.
const ENDPOINT: usize = 2 << 20;
/// Addresses in a dma-buf and those that requests name agree below this.
const PAGE: u64 = 4096;

/// What is to be said of a device, or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adapter {
    /// As in [`SYSFS`]; none of all.
    pub name: Option<String>,
    /// The link verbs can use it.
    pub ok: bool,
    /// A line of the device, and one of each kind of memory.
    pub text: String,
    /// What is to be done where it cannot.
    pub cure: Option<String>,
}

impl Adapter {
    fn all(ok: bool, text: impl Into<String>, cure: Option<&str>) -> Vec<Adapter> {
        vec![Adapter { name: None, ok, text: text.into(), cure: cure.map(str::to_owned) }]
    }
}

/// The devices of this host, opened one after the other.
pub fn all() -> Vec<Adapter> {
    let entries = std::fs::read_dir(SYSFS).into_iter().flatten().flatten();
    let listed: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    let devices = Library::open().and_then(|library| Device::list(&library));
    match devices {
        Ok(devices) if !devices.is_empty() => {
            let gpu = Gpu::new();
            devices.iter().map(|device| of(device, &gpu)).collect()
        }
        _ if listed.is_empty() => Adapter::all(true, format!("no device in {SYSFS}"), None),
        Ok(_) => Adapter::all(
            false,
            format!("{}: none may be used by this process", listed.join(", ")),
            Some("ls -l /dev/infiniband; in a container --device /dev/infiniband"),
        ),
        Err(Error::NoLibrary(why)) => Adapter::all(
            false,
            format!("{}: libibverbs cannot be loaded: {why}", listed.join(", ")),
            Some("install libibverbs1 (rdma-core), and the library of the device's driver"),
        ),
        Err(e) => Adapter::all(false, format!("{}: {e}", listed.join(", ")), Some("ls -l /dev/infiniband")),
    }
}

fn of(device: &Device, gpu: &Result<Gpu, String>) -> Adapter {
    let found = open(device).map(|(context, ports)| {
        let memory = Pd::new(&context).map(|pd| memory(&pd, gpu));
        (ports, memory.unwrap_or_else(|e| (Err(e.errno()), format!("no memory: {e}"))))
    });
    let name = Some(device.name());
    match found {
        Ok((ports, (Ok(()), memory))) => {
            let set = |setting: settings::Setting| std::env::var(setting.variable()).ok();
            let link = link(&device.name(), set(settings::LINKS), set(settings::VERBS_DEVICE));
            Adapter { name, ok: true, text: format!("{ports}; {link}\n{memory}"), cure: None }
        }
        Ok((ports, (Err(errno), memory))) => {
            Adapter { name, ok: false, text: format!("{ports}\n{memory}"), cure: Some(cure(errno).into()) }
        }
        Err((text, cure)) => Adapter { name, ok: false, text, cure: Some(cure.into()) },
    }
}

/// What is to be done where memory of the host is not registered.
fn cure(errno: i32) -> &'static str {
    match errno {
        libc::ENOMEM | libc::EAGAIN => "ulimit -l unlimited, before the job is started",
        _ => "dmesg: the device's driver, or a rule of the container's, refuses the call",
    }
}

/// Whether the link uses this device.
fn link(name: &str, links: Option<String>, wanted: Option<String>) -> String {
    let names = |wanted: &String| wanted.split(',').any(|one| one.trim() == name);
    let wanted = wanted.filter(|wanted| !wanted.is_empty() && !names(wanted));
    if let Some(wanted) = wanted {
        return format!(
            "the link verbs does not use it: {} names {wanted}",
            settings::VERBS_DEVICE.variable()
        );
    }
    let is_named = links.is_some_and(|links| links.split(',').any(|link| link.trim() == "verbs"));
    let variable = settings::LINKS.variable();
    match is_named {
        true => format!("{variable} names the link verbs, which uses it"),
        false => format!("the link verbs uses it with {variable}=shm,verbs"),
    }
}

/// Opens a device that the link can use, and names its ports; else says why not, and what to do.
fn open(device: &Device) -> Result<(Context, String), (String, &'static str)> {
    if let Some(Err(e)) = device.is_iwarp().then(|| CmLibrary::open(None)) {
        return Err((format!("its connections are iWARP's: {e}"), "install librdmacm1 (rdma-core)"));
    }
    if !device.is_infiniband() && !device.is_iwarp() {
        return Err((
            "it has no reliable connections of InfiniBand, RoCE or iWARP".into(),
            "FI_STRAIT_LINKS=shm,ofi",
        ));
    }
    let context = Context::open(device).map_err(|e| (e.to_string(), "ls -l /dev/infiniband"))?;
    let ports: Vec<_> = (1..=context.attributes().phys_port_cnt).map(|n| (n, context.port(n))).collect();
    let active: Vec<String> = ports
        .iter()
        .filter(|(_, port)| port.as_ref().is_ok_and(rdma_sys::Port::is_active))
        .map(|(n, _)| format!("port {n} is active"))
        .collect();
    if !active.is_empty() {
        let by = if device.is_iwarp() { ", of iWARP: an endpoint needs its interface's address" } else { "" };
        return Ok((context, active.join(", ") + by));
    }
    let refused = ports.iter().find_map(|(n, port)| port.as_ref().err().map(|e| format!("port {n}: {e}")));
    let text = refused.unwrap_or_else(|| "no port is active".into());
    Err((text, "ibv_devinfo; the link or the subnet manager is down"))
}

/// Memory of a GPU.
struct Gpu(cuda::Memory);

impl Gpu {
    fn new() -> Result<Gpu, String> {
        cuda::Memory::new(0, LEN).map(Gpu)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.0.free();
    }
}

/// What is said of a way.
fn outcome(way: &str, found: Result<(), String>) -> String {
    match found {
        Ok(()) => format!("{way}: yes"),
        Err(why) => format!("{way}: no ({why})"),
    }
}

/// By which ways memory is registered: whether as much of the host's is as an endpoint has, or an errno, and
/// a line of each kind.
fn memory(pd: &Pd, gpu: &Result<Gpu, String>) -> (Result<(), i32>, String) {
    let context = pd.context();
    let host = register(pd);
    let found = host.as_ref().map_err(Error::errno).copied();
    let host = host.map_err(|e| e.to_string());
    let on_demand = match context.has_on_demand() {
        true => Ok(()),
        false => Err("odp_caps lacks sends, receives, reads or writes".into()),
    };
    let windows = match context.has_windows() {
        true => pd.window().map(drop).map_err(|e| e.to_string()),
        false => {
            Err("device_cap_flags lacks IBV_DEVICE_MEM_WINDOW_TYPE_2B: peers access it in frames".into())
        }
    };
    let of_host = [
        outcome("by its address", host),
        outcome("for peers, by memory windows", windows),
        outcome("on demand, with FI_STRAIT_VERBS_ON_DEMAND=yes", on_demand),
    ];
    let peer_memory = match has_peer_memory(Path::new(PEER_MEMORY)) {
        true => Ok(()),
        false => Err(format!("{PEER_MEMORY}: {}", io::Error::from_raw_os_error(libc::ENODEV))),
    };
    let peer_memory = |gpu: &Gpu| peer_memory.clone().and_then(|()| register_at(pd, gpu.0.addr()));
    let of_gpu = match gpu {
        Ok(gpu) => vec![
            outcome("as a dma-buf over PCIe", dmabuf(pd, gpu, true)),
            outcome("as a dma-buf", dmabuf(pd, gpu, false)),
            outcome("by a client of the kernel for peer memory", peer_memory(gpu)),
        ],
        Err(why) => vec![format!("none to try with ({why})"), outcome("dma-bufs of others", any_dmabuf(pd))],
    };
    (found, format!("memory of the host: {}\nof a GPU: {}", of_host.join("; "), of_gpu.join("; ")))
}

fn register(pd: &Pd) -> Result<(), Error> {
    let (mut sent, mut received) = (vec![0u8; ENDPOINT], vec![0u8; ENDPOINT]);
    // SAFETY: memory that is there until the registration ends, here, and that no request names.
    let of = |bytes: &mut [u8]| unsafe {
        pd.register(bytes.as_mut_ptr().cast(), bytes.len(), Access::LOCAL_WRITE)
    };
    // Both at once.
    let _both = (of(&mut sent)?, of(&mut received)?);
    Ok(())
}

/// The same of a GPU's memory, by its address.
fn register_at(pd: &Pd, at: usize) -> Result<(), String> {
    // SAFETY: memory of this process's, which is freed later, and that no request names.
    let mr = unsafe { pd.register(std::ptr::with_exposed_provenance_mut(at), LEN, Access::LOCAL_WRITE) };
    mr.map(drop).map_err(|e| e.to_string())
}

fn dmabuf(pd: &Pd, gpu: &Gpu, over_pcie: bool) -> Result<(), String> {
    let exported = hmem::registry::of(Kind::Cuda).export_dmabuf(gpu.0.addr(), LEN, over_pcie);
    let (fd, offset) = exported
        .map_err(|e| format!("the export of a dma-buf: {}", io::Error::from_raw_os_error(e.errno())))?;
    let part = Dmabuf { fd: fd.as_fd(), offset, len: LEN, iova: offset % PAGE };
    // SAFETY: of memory that is freed later, and that no request names.
    unsafe { pd.register_dmabuf(part, Access::LOCAL_WRITE) }.map(drop).map_err(|e| e.to_string())
}

/// Whether the device has a call for dma-bufs, by one that is none: any errno but that it has not says so.
fn any_dmabuf(pd: &Pd) -> Result<(), String> {
    let none = File::open("/dev/null").map_err(|e| format!("/dev/null: {e}"))?;
    let part = Dmabuf { fd: none.as_fd(), offset: 0, len: LEN, iova: 0 };
    // SAFETY: of no memory, or of some that no request names.
    match unsafe { pd.register_dmabuf(part, Access::LOCAL_WRITE) } {
        Err(e) if e.is_unsupported() => Err(e.to_string()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_the_link_is_turned_on_is_said_where_it_is_not() {
        let of = |links: Option<&str>| link("sv0", links.map(str::to_owned), None);
        assert!(of(None).ends_with("with FI_STRAIT_LINKS=shm,verbs"));
        assert!(of(Some("shm, verbs")).contains("names the link verbs"));
        assert!(of(Some("shm,ofi:verbs;ofi_rxm")).ends_with("=shm,verbs"));
    }

    #[test]
    fn a_device_is_not_said_to_be_used_where_another_one_is_named() {
        let of = |name: &str| link(name, Some("shm,verbs".into()), Some("sv1".into()));
        assert_eq!(of("sv0"), "the link verbs does not use it: FI_STRAIT_VERBS_DEVICE names sv1");
        assert!(of("sv1").ends_with("which uses it"));
        let of = |name: &str| link(name, Some("shm,verbs".into()), Some("sv1, sv2".into()));
        assert!(of("sv2").ends_with("which uses it") && of("sv0").ends_with("names sv1, sv2"));
    }

    #[test]
    fn the_limit_of_locked_memory_is_the_cure_of_too_little_room_alone() {
        assert!([libc::ENOMEM, libc::EAGAIN].map(cure).iter().all(|cure| cure.contains("ulimit -l")));
        assert!(!cure(libc::EPERM).contains("ulimit"));
    }
}
