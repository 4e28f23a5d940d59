//! What is registered with each copy of UCX: a component, a transport, and their functions.

use std::ffi::c_void;
use std::sync::Mutex;

use ucx_sys::{
    self as ucx, ComponentOps, ConfigEntry, Epoch, Host, IfaceOps, InternalOps, Layout, MdOps, libraries,
};

use crate::rma::served::{SERVED, Served};
use crate::{
    am, device,
    ep::{self, pending},
    iface::{self, progress},
    md::{self, rkey},
    param,
    rma::{self, atomic},
};

/// The name of transport, component and memory domain.
const NAME: &str = "strait";

/// Registers with every UCX of this process that is not served yet, or was refused: with the table of
/// functions for host memory that `outer` makes of this one.
pub(crate) fn register_all(outer: fn(IfaceOps) -> IfaceOps) {
    static REFUSED: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let params = param::get();
    let mut served = SERVED.lock().unwrap_or_else(|e| e.into_inner());
    let mut refused = REFUSED.lock().unwrap_or_else(|e| e.into_inner());
    for library in libraries() {
        let list = library.components() as usize;
        if refused.contains(&list) || served.iter().any(|s| s.host.components as usize == list) {
            continue;
        }
        let path = library.path().to_string_lossy().into_owned();
        let made = Host::of(library).and_then(|host| {
            if params.check {
                ucx::posix_agrees(&host)?;
            }
            Ok(host)
        });
        match made {
            Ok(host) => {
                log::debug!("serving UCX {} in {path}", host.epoch().name());
                served.push(serve(host, outer));
            }
            Err(why) => {
                crate::log::line(format_args!("strait: not used with {path}: {why}"));
                refused.push(list);
            }
        }
    }
}

fn serve(host: Host, outer: fn(IfaceOps) -> IfaceOps) -> &'static Served {
    let layout: Layout = host.layout;
    let entry = |name: &'static std::ffi::CStr, table, size| ConfigEntry {
        name: name.as_ptr().cast(),
        prefix: c"STRAIT_".as_ptr().cast(),
        table,
        size,
    };
    let component = layout.component(
        NAME.as_bytes(),
        &component_ops(layout.epoch),
        &entry(c"Strait memory domain", host.md_config_table, 8),
    );
    let tl = layout.tl(
        NAME.as_bytes(),
        iface::query_devices as *const c_void,
        iface::open as *const c_void,
        &entry(c"Strait transport", host.iface_config_table, IFACE_CONFIG),
    );
    let component: *mut u64 = component.leak().as_mut_ptr();
    let tl: *mut u64 = tl.leak().as_mut_ptr();
    // SAFETY: inside the component, by the layout. An empty list points to itself.
    unsafe {
        let list = component.add(layout.tl_list() / 8);
        list.write(list as u64);
        list.add(1).write(list as u64);
    }
    let query_v2 = match host.query_v2() {
        f if f.is_null() => ucx::unsupported as *const c_void,
        f => f,
    };
    let served = Box::leak(Box::new(Served {
        md_ops: layout.md_ops(&md_ops(layout.epoch)),
        internal_ops: layout.internal_ops(&InternalOps {
            query_v2,
            estimate_perf: iface::estimate_perf as *const c_void,
            is_reachable_v2: iface::is_reachable_v2 as *const c_void,
            ep_is_connected: ep::is_connected as *const c_void,
        }),
        iface_ops: outer(iface_ops()),
        device_md_ops: layout.md_ops(&device_md_ops(layout.epoch)),
        device_internal_ops: layout.internal_ops(&InternalOps {
            query_v2,
            estimate_perf: device::iface::estimate_perf as *const c_void,
            is_reachable_v2: device::iface::is_reachable_v2 as *const c_void,
            ep_is_connected: device::ep::is_connected as *const c_void,
        }),
        device_iface_ops: device_iface_ops(),
        component: component.cast(),
        tl: tl.cast(),
        host,
    }));
    // SAFETY: a component and a transport laid out for this very UCX, which live for ever.
    unsafe {
        (served.host.component_register)(served.component);
        (served.host.tl_register)(served.component, served.tl);
    }
    served
}

/// Bytes of `uct_iface_config_t`, the same in all releases.
const IFACE_CONFIG: usize = 32;

fn component_ops(epoch: Epoch) -> ComponentOps {
    ComponentOps {
        query_md_resources: md::query_resources as *const c_void,
        md_open: md::open as *const c_void,
        rkey_unpack: if epoch >= Epoch::V1_19 {
            rkey::rkey_unpack_v2 as *const c_void
        } else {
            rkey::rkey_unpack as *const c_void
        },
        rkey_ptr: rkey::rkey_ptr as *const c_void,
        rkey_release: rkey::rkey_release as *const c_void,
        rkey_compare: rkey::rkey_compare as *const c_void,
    }
}

fn md_ops(epoch: Epoch) -> MdOps {
    MdOps {
        close: md::close as *const c_void,
        query: md::query as *const c_void,
        mem_alloc: if epoch >= Epoch::V1_19 {
            md::mem_alloc_v2 as *const c_void
        } else {
            md::mem_alloc as *const c_void
        },
        mem_free: md::mem_free as *const c_void,
        mem_reg: md::mem_reg as *const c_void,
        mem_dereg: md::mem_dereg as *const c_void,
        mkey_pack: if epoch >= Epoch::V1_16 {
            md::mkey_pack_v2 as *const c_void
        } else {
            md::mkey_pack as *const c_void
        },
    }
}

fn device_md_ops(epoch: Epoch) -> MdOps {
    use device::md;
    let none = ucx::unsupported as *const c_void;
    MdOps {
        close: md::close as *const c_void,
        query: md::query as *const c_void,
        mem_alloc: none,
        mem_free: none,
        mem_reg: md::mem_reg as *const c_void,
        mem_dereg: md::mem_dereg as *const c_void,
        mkey_pack: if epoch >= Epoch::V1_16 {
            md::mkey_pack_v2 as *const c_void
        } else {
            md::mkey_pack as *const c_void
        },
    }
}

/// What is left as it is for host memory (short, bcopy, messages, atomics) is never called, by what the
/// interface says of itself.
fn device_iface_ops() -> IfaceOps {
    use device::{ep, iface};
    IfaceOps {
        ep_put_zcopy: ep::put_zcopy,
        ep_get_zcopy: ep::get_zcopy,
        ep_pending_add: ep::pending_add,
        ep_pending_purge: ep::pending_purge,
        ep_flush: ep::flush,
        ep_fence: ep::fence,
        ep_check: ep::check,
        ep_create: ep::create,
        ep_destroy: ep::destroy,
        iface_flush: iface::flush,
        iface_fence: iface::fence,
        iface_progress_enable: iface::progress_enable,
        iface_progress_disable: iface::progress_disable,
        iface_progress: iface::progress,
        iface_event_fd_get: iface::event_fd_get,
        iface_event_arm: iface::event_arm,
        iface_close: iface::close,
        iface_query: iface::query,
        iface_get_device_address: iface::get_device_address,
        iface_get_address: iface::get_address,
        iface_is_reachable: iface::is_reachable,
        ..iface_ops()
    }
}

fn iface_ops() -> IfaceOps {
    let none = ucx::unsupported as *const c_void;
    IfaceOps {
        ep_put_short: rma::put_short,
        ep_put_bcopy: rma::put_bcopy,
        ep_put_zcopy: rma::put_zcopy,
        ep_get_short: rma::get_short,
        ep_get_bcopy: rma::get_bcopy,
        ep_get_zcopy: rma::get_zcopy,
        ep_am_short: am::am_short,
        ep_am_short_iov: am::am_short_iov,
        ep_am_bcopy: am::am_bcopy,
        ep_am_zcopy: am::am_zcopy,
        ep_atomic_cswap64: atomic::cswap64,
        ep_atomic_cswap32: atomic::cswap32,
        ep_atomic32_post: atomic::post32,
        ep_atomic64_post: atomic::post64,
        ep_atomic32_fetch: atomic::fetch32,
        ep_atomic64_fetch: atomic::fetch64,
        ep_tag_eager_short: none,
        ep_tag_eager_bcopy: none,
        ep_tag_eager_zcopy: none,
        ep_tag_rndv_zcopy: none,
        ep_tag_rndv_cancel: none,
        ep_tag_rndv_request: none,
        iface_tag_recv_zcopy: none,
        iface_tag_recv_cancel: none,
        ep_pending_add: pending::pending_add,
        ep_pending_purge: pending::pending_purge,
        ep_flush: ep::flush,
        ep_fence: ep::fence,
        ep_check: ep::check,
        ep_create: ep::create,
        ep_connect: none,
        ep_disconnect: none,
        cm_ep_conn_notify: none,
        ep_destroy: ep::destroy,
        ep_get_address: none,
        ep_connect_to_ep: none,
        iface_accept: none,
        iface_reject: none,
        iface_flush: iface::flush,
        iface_fence: iface::fence,
        iface_progress_enable: progress::progress_enable,
        iface_progress_disable: progress::progress_disable,
        iface_progress: progress::progress,
        iface_event_fd_get: progress::event_fd_get,
        iface_event_arm: progress::event_arm,
        iface_close: iface::close,
        iface_query: iface::query,
        iface_get_device_address: iface::get_device_address,
        iface_get_address: iface::get_address,
        iface_is_reachable: iface::is_reachable,
    }
}
