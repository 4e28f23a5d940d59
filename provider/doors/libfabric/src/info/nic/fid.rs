//! `struct fid_nic`, as the core copies and frees it.
//!
//! The core's fi_dupinfo and fi_freeinfo call the table below. Providers that layer over others copy the
//! structure themselves, table and all, with memory of the C heap: so everything here is of that heap, each
//! part on its own, and [`close`] frees what either has made.

use std::ffi::CStr;
use std::fmt::Write;
use std::ptr::{self, null_mut};

use libc::{c_char, c_int, c_void};
use libfabric_sys as fi;

use super::{Device, Pci};
use crate::errno::Errno;
use crate::ffi::{arg, guard, put};

static OPS: fi::fi_ops =
    fi::fi_ops { close: Some(close), control: Some(control), tostr: Some(tostr), ..fi::NO_OPS };

/// Zeroed memory of the C heap.
fn alloc<T>() -> Result<*mut T, Errno> {
    // SAFETY: no memory is passed.
    let p = unsafe { libc::calloc(1, size_of::<T>()) };
    if p.is_null() { Err(Errno::NOMEM) } else { Ok(p.cast()) }
}

/// A copy of a string, of the C heap.
fn string(bytes: Option<&[u8]>) -> Result<*mut c_char, Errno> {
    let Some(bytes) = bytes else { return Ok(null_mut()) };
    let len = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    // SAFETY: no memory is passed; `len` and a byte are allocated.
    let p = unsafe { libc::calloc(len + 1, 1) };
    if p.is_null() {
        return Err(Errno::NOMEM);
    }
    // SAFETY: `p` is new and has room for `len` bytes and the NUL it ends in.
    unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), p.cast(), len) };
    Ok(p.cast())
}

/// A `fid_nic` while it is made: freed again if it does not come to its end.
struct Nic(*mut fi::fid_nic);

impl Nic {
    /// With all three attributes, empty.
    fn new() -> Result<Nic, Errno> {
        let nic = Nic(alloc::<fi::fid_nic>()?);
        // SAFETY: new, and nothing else knows of it.
        let it = unsafe { &mut *nic.0 };
        it.fid = fi::fid { fclass: fi::FI_CLASS_NIC, context: null_mut(), ops: (&raw const OPS).cast_mut() };
        it.device_attr = alloc()?;
        it.bus_attr = alloc()?;
        it.link_attr = alloc()?;
        Ok(nic)
    }

    fn done(self) -> *mut fi::fid_nic {
        let it = self.0;
        std::mem::forget(self);
        it
    }
}

impl Drop for Nic {
    fn drop(&mut self) {
        // SAFETY: made by `new`, as far as that came, and given to no caller.
        unsafe { free(self.0) }
    }
}

/// # Safety
/// `nic` is a `fid_nic` that nothing uses from now on; it and all it points to are of the C heap.
unsafe fn free(nic: *mut fi::fid_nic) {
    // SAFETY: the caller's promise; free takes NULL.
    unsafe {
        if let Some(d) = (*nic).device_attr.as_ref() {
            for s in [d.name, d.device_id, d.device_version, d.vendor_id, d.driver, d.firmware] {
                libc::free(s.cast());
            }
        }
        if let Some(l) = (*nic).link_attr.as_ref() {
            libc::free(l.address.cast());
            libc::free(l.network_type.cast());
        }
        libc::free((*nic).device_attr.cast());
        libc::free((*nic).bus_attr.cast());
        libc::free((*nic).link_attr.cast());
        libc::free(nic.cast());
    }
}

/// What the core is given, which will have it freed.
pub(crate) fn make(of: &Device) -> Result<*mut fi::fid_nic, Errno> {
    let text = |s: &Option<String>| string(s.as_ref().map(String::as_bytes));
    let nic = Nic::new()?;
    // SAFETY: `new` has made all three, and nothing else knows of them.
    let (device, bus, link) = unsafe {
        let it = &*nic.0;
        (&mut *it.device_attr, &mut *it.bus_attr, &mut *it.link_attr)
    };
    device.name = string(Some(of.name.as_bytes()))?;
    device.device_id = text(&of.id)?;
    device.device_version = text(&of.version)?;
    device.vendor_id = text(&of.vendor)?;
    device.driver = text(&of.driver)?;
    bus.bus_type = fi::FI_BUS_UNKNOWN;
    if let Some(Pci { domain, bus: number, device, function }) = of.pci {
        bus.bus_type = fi::FI_BUS_PCI;
        bus.attr.pci =
            fi::fi_pci_attr { domain_id: domain, bus_id: number, device_id: device, function_id: function };
    }
    link.address = text(&of.link.address)?;
    link.mtu = of.link.mtu;
    link.speed = of.link.speed;
    link.state = of.link.state;
    link.network_type = string(of.link.network.map(str::as_bytes))?;
    Ok(nic.done())
}

/// # Safety
/// `s` is NULL or a string, which lives for `'a`.
unsafe fn bytes<'a>(s: *const c_char) -> Option<&'a [u8]> {
    // SAFETY: the caller's promise.
    (!s.is_null()).then(|| unsafe { CStr::from_ptr(s) }.to_bytes())
}

/// # Safety
/// `from` is a live `fid_nic`, each attribute NULL or valid.
unsafe fn dup(from: &fi::fid_nic) -> Result<*mut fi::fid_nic, Errno> {
    let nic = Nic::new()?;
    // SAFETY: the caller's promise for what is read; what is written is new.
    unsafe {
        let to = &*nic.0;
        if let Some(d) = from.device_attr.as_ref() {
            let copy = &mut *to.device_attr;
            copy.name = string(bytes(d.name))?;
            copy.device_id = string(bytes(d.device_id))?;
            copy.device_version = string(bytes(d.device_version))?;
            copy.vendor_id = string(bytes(d.vendor_id))?;
            copy.driver = string(bytes(d.driver))?;
            copy.firmware = string(bytes(d.firmware))?;
        }
        if let Some(b) = from.bus_attr.as_ref() {
            *to.bus_attr = *b;
        }
        if let Some(l) = from.link_attr.as_ref() {
            let copy = &mut *to.link_attr;
            (copy.mtu, copy.speed, copy.state) = (l.mtu, l.speed, l.state);
            copy.address = string(bytes(l.address))?;
            copy.network_type = string(bytes(l.network_type))?;
        }
    }
    Ok(nic.done())
}

/// A `fid_nic` with our table: made here, or a copy that the core has made of one.
///
/// # Safety
/// `fid` is NULL or points to a live `fid`.
unsafe fn ours<'a>(fid: *const fi::fid) -> Result<&'a fi::fid_nic, Errno> {
    // SAFETY: the caller's promise.
    let head = unsafe { arg(fid)? };
    if head.fclass != fi::FI_CLASS_NIC || !ptr::eq(head.ops, &raw const OPS) {
        return Err(Errno::INVAL);
    }
    // SAFETY: that class and that table are of such a structure alone.
    Ok(unsafe { &*fid.cast::<fi::fid_nic>() })
}

unsafe extern "C" fn close(fid: *mut fi::fid) -> c_int {
    guard(|| {
        // SAFETY: the core passes a nic that it has no more use for.
        unsafe {
            ours(fid)?;
            free(fid.cast());
        }
        Ok(())
    })
}

unsafe extern "C" fn control(fid: *mut fi::fid, command: c_int, to: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: the core passes a live nic.
        let nic = unsafe { ours(fid)? };
        if command != fi::FI_DUP {
            return Err(Errno::NOSYS);
        }
        let to: *mut *mut fi::fid_nic = to.cast();
        if to.is_null() {
            return Err(Errno::INVAL);
        }
        // SAFETY: a live nic, and FI_DUP's argument is where the copy goes.
        unsafe { put(to, dup(nic)?) }
    })
}

/// As the core prints those of its own providers: behind what is in the buffer.
unsafe extern "C" fn tostr(fid: *const fi::fid, buf: *mut c_char, len: usize) -> c_int {
    guard(|| {
        // SAFETY: the core passes a live nic.
        let nic = unsafe { ours(fid)? };
        // SAFETY: live, each part NULL or valid.
        let text = unsafe { describe(nic) };
        if buf.is_null() || len == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: a buffer of `len` bytes that holds a string.
        unsafe {
            let at = libc::strnlen(buf, len);
            crate::text::put_text(buf.add(at), len - at, &text);
        }
        Ok(())
    })
}

/// # Safety
/// As of [`dup`].
unsafe fn describe(nic: &fi::fid_nic) -> String {
    // SAFETY: the caller's promise.
    let say = |s: *const c_char| {
        // SAFETY: the caller's promise, of the strings of `nic`.
        unsafe { bytes(s) }.map_or("(null)".into(), |b| String::from_utf8_lossy(b).into_owned())
    };
    let mut out = String::from("    nic:\n");
    // SAFETY: the caller's promise.
    let (device, bus, link) =
        unsafe { (nic.device_attr.as_ref(), nic.bus_attr.as_ref(), nic.link_attr.as_ref()) };
    if let Some(d) = device {
        out.push_str("        fi_device_attr:\n");
        for (name, value) in [
            ("name", d.name),
            ("device_id", d.device_id),
            ("device_version", d.device_version),
            ("vendor_id", d.vendor_id),
            ("driver", d.driver),
            ("firmware", d.firmware),
        ] {
            let _ = writeln!(out, "            {name}: {}", say(value));
        }
    }
    if let Some(b) = bus {
        out.push_str("        fi_bus_attr:\n");
        if b.bus_type == fi::FI_BUS_PCI {
            // SAFETY: with that type it is this member of the union.
            let p = unsafe { b.attr.pci };
            let _ = writeln!(
                out,
                "            bus_type: FI_BUS_PCI\n            fi_pci_attr:\n                domain_id: {}\n                \
                 bus_id: {}\n                device_id: {}\n                function_id: {}",
                p.domain_id, p.bus_id, p.device_id, p.function_id
            );
        } else {
            out.push_str("            bus_type: FI_BUS_UNKNOWN\n");
        }
    }
    if let Some(l) = link {
        let state = match l.state {
            fi::FI_LINK_UP => "FI_LINK_UP",
            fi::FI_LINK_DOWN => "FI_LINK_DOWN",
            _ => "FI_LINK_UNKNOWN",
        };
        let _ = writeln!(
            out,
            "        fi_link_attr:\n            address: {}\n            mtu: {}\n            speed: {}\n            \
             state: {state}\n            network_type: {}",
            say(l.address),
            l.mtu,
            l.speed,
            say(l.network_type)
        );
    }
    out
}
