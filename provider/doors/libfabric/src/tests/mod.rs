//! The door's objects as an application sees them: through the tables of the ABI.

use std::ptr;

use libc::{c_int, c_void};

use crate::{fabric, fi};

mod agent;
mod collective;
mod cuda;
mod events;
mod objects;
mod poisoned;
#[cfg(target_arch = "x86_64")]
mod registration;
mod sleep;
mod streams;
mod xpu;

const NO: *mut c_void = ptr::null_mut();
const AGAIN: isize = -(fi::FI_EAGAIN as isize);
const BUSY: c_int = -fi::FI_EBUSY;

/// Calls a slot of an object's table.
macro_rules! call {
    ($object:expr, $table:ident.$slot:ident($($arg:expr),* $(,)?)) => {{
        let object = $object;
        // SAFETY: the object is open, its tables are full, and the arguments are what the function's
        // manual page demands.
        unsafe { ((*(*object).$table).$slot.unwrap())(object.cast(), $($arg),*) }
    }};
}

/// Calls a slot of the table every object has.
macro_rules! call_fid {
    ($object:expr, $slot:ident($($arg:expr),* $(,)?)) => {{
        let fid: *mut fi::fid = $object.cast();
        // SAFETY: as in `call`.
        unsafe { ((*(*fid).ops).$slot.unwrap())(fid, $($arg),*) }
    }};
}

pub(crate) use {call, call_fid};

/// Whether this test has a process of its own, as what it sets is the process's: else it is run in one, and
/// passes there.
fn alone() -> bool {
    const CHILD: &str = "STRAIT_TEST_ALONE";
    let is = |name, value: &str| std::env::var(name).is_ok_and(|found| found == value);
    if is(CHILD, "1") || is("NEXTEST_EXECUTION_MODE", "process-per-test") {
        return true;
    }
    let name = std::thread::current().name().expect("the test's").to_owned();
    let own = std::env::current_exe().expect("this program");
    let child = std::process::Command::new(own).args(["--exact", &name]).env(CHILD, "1").output();
    let child = child.expect("a process");
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
    false
}

/// Everything of one type that a test opens stays where it is.
pub(crate) fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

pub(crate) fn close(object: *mut impl Sized) -> c_int {
    call_fid!(object, close())
}

fn bind(object: *mut impl Sized, to: *mut impl Sized, flags: u64) -> c_int {
    call_fid!(object, bind(to.cast(), flags))
}

/// A pointer another thread may have: libfabric's objects are made for that.
#[derive(Clone, Copy)]
struct Shared<T>(*mut T);
// SAFETY: these tests only pass it to functions that any thread may call.
unsafe impl<T> Send for Shared<T> {}

impl<T> Shared<T> {
    fn get(self) -> *mut T {
        self.0
    }
}

/// How a world differs from the next one.
#[derive(Clone, Copy)]
struct Setting {
    api: (u32, u32),
    auto: bool,
    wait: fi::fi_wait_obj,
    mr_mode: c_int,
    /// The address of endpoints, if it is to be named.
    src: Option<std::net::Ipv4Addr>,
}

impl Default for Setting {
    fn default() -> Self {
        Setting { api: (2, 1), auto: false, wait: fi::FI_WAIT_UNSPEC, mr_mode: 0, src: None }
    }
}

/// A domain with one of everything but endpoints.
struct World {
    fabric: *mut fi::fid_fabric,
    domain: *mut fi::fid_domain,
    info: *mut fi::fi_info,
    eq: *mut fi::fid_eq,
    cq: *mut fi::fid_cq,
    cntr: *mut fi::fid_cntr,
    av: *mut fi::fid_av,
}

impl World {
    fn new(with: Setting) -> World {
        let api_version = fi::FI_VERSION(with.api.0, with.api.1);
        let fabric_attr = leak(fi::fi_fabric_attr { api_version, ..Default::default() });
        let mut fabric = ptr::null_mut();
        // SAFETY: valid attributes, and a place for the answer.
        assert_eq!(unsafe { fabric::open(fabric_attr, &mut fabric, NO) }, 0);
        let data_progress = if with.auto { fi::FI_PROGRESS_AUTO } else { fi::FI_PROGRESS_MANUAL };
        let domain_attr = fi::fi_domain_attr {
            threading: fi::FI_THREAD_SAFE,
            anon1: fi::fi_domain_attr__bindgen_ty_1 { data_progress },
            mr_mode: with.mr_mode,
            ..Default::default()
        };
        let ep_attr = fi::fi_ep_attr { type_: fi::FI_EP_RDM, ..Default::default() };
        let src = with.src.map(|ip| libc::sockaddr_in {
            sin_family: libc::AF_INET as libc::sa_family_t,
            sin_port: 0,
            sin_addr: libc::in_addr { s_addr: u32::from(ip).to_be() },
            sin_zero: [0; 8],
        });
        let info = leak(fi::fi_info {
            src_addr: src.map_or(ptr::null_mut(), |src| leak(src).cast()),
            src_addrlen: src.map_or(0, |_| size_of::<libc::sockaddr_in>()),
            caps: fi::FI_MSG | fi::FI_RMA | fi::FI_RMA_EVENT,
            addr_format: fi::FI_SOCKADDR_IN,
            domain_attr: leak(domain_attr),
            ep_attr: leak(ep_attr),
            tx_attr: leak(fi::fi_tx_attr::default()),
            rx_attr: leak(fi::fi_rx_attr::default()),
            fabric_attr,
            ..Default::default()
        });
        let (mut domain, mut eq, mut cq) = (ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let (mut cntr, mut av) = (ptr::null_mut(), ptr::null_mut());
        assert_eq!(call!(fabric, ops.domain(info, &mut domain, NO)), 0);
        let attr = &mut fi::fi_eq_attr { flags: fi::FI_WRITE, wait_obj: with.wait, ..Default::default() };
        assert_eq!(call!(fabric, ops.eq_open(attr, &mut eq, NO)), 0);
        let format = fi::FI_CQ_FORMAT_DATA;
        let attr = &mut fi::fi_cq_attr { format, wait_obj: with.wait, ..Default::default() };
        assert_eq!(call!(domain, ops.cq_open(attr, &mut cq, NO)), 0);
        let attr = &mut fi::fi_cntr_attr { wait_obj: with.wait, ..Default::default() };
        assert_eq!(call!(domain, ops.cntr_open(attr, &mut cntr, NO)), 0);
        let attr = &mut fi::fi_av_attr { type_: fi::FI_AV_TABLE, ..Default::default() };
        assert_eq!(call!(domain, ops.av_open(attr, &mut av, NO)), 0);
        World { fabric, domain, info, eq, cq, cntr, av }
    }

    /// An endpoint bound to all of it, and its name.
    fn ep(&self) -> (*mut fi::fid_ep, Vec<u8>) {
        let mut ep = ptr::null_mut();
        assert_eq!(call!(self.domain, ops.endpoint(self.info, &mut ep, NO)), 0);
        assert_eq!(bind(ep, self.cq, fi::FI_TRANSMIT | fi::FI_RECV), 0);
        assert_eq!(bind(ep, self.cntr, fi::FI_RECV), 0);
        assert_eq!(bind(ep, self.av, 0), 0);
        assert_eq!(call_fid!(ep, control(fi::FI_ENABLE, NO)), 0);
        let (mut name, mut len) = (vec![0; 64], 64);
        assert_eq!(call!(ep, cm.getname(name.as_mut_ptr().cast(), &mut len)), 0);
        name.truncate(len);
        (ep, name)
    }

    fn insert(&self, name: &[u8]) -> fi::fi_addr_t {
        let mut addr = fi::FI_ADDR_NOTAVAIL;
        assert_eq!(call!(self.av, ops.insert(name.as_ptr().cast(), 1, &mut addr, 0, NO)), 1);
        addr
    }

    fn register(&self, at: *mut c_void, len: usize, key: u64) -> *mut fi::fid_mr {
        let mut mr = ptr::null_mut();
        let access = fi::FI_REMOTE_READ | fi::FI_REMOTE_WRITE;
        assert_eq!(call!(self.domain, mr.reg(at, len, access, 0, key, 0, &mut mr, NO)), 0);
        mr
    }

    fn read(&self) -> Result<fi::fi_cq_data_entry, isize> {
        let mut entry = fi::fi_cq_data_entry::default();
        match call!(self.cq, ops.read((&raw mut entry).cast(), 1)) {
            1 => Ok(entry),
            e => Err(e),
        }
    }

    fn end(self) {
        let parts: [*mut fi::fid; 6] = [
            self.av.cast(),
            self.cntr.cast(),
            self.cq.cast(),
            self.domain.cast(),
            self.eq.cast(),
            self.fabric.cast(),
        ];
        for part in parts {
            assert_eq!(close(part), 0);
        }
    }
}
