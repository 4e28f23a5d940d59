//! How an endpoint of a provider below is opened: its objects, its memory, its name, and its first receives.

use std::ffi::CStr;
use std::mem::ManuallyDrop;

use fabric_client::{Error, Objects, Queue, step};
use libfabric_sys as fi;
use wire::session::MOST_ADDRESS;

use super::{Fabric, MESSAGE, Named, RECEIVES, SENDS};
use crate::places::{Receives, Sends};
use crate::remote::Remote;

/// Its queue.
const QUEUE: Queue = Queue { entries: 2 * (RECEIVES + SENDS), format: fi::FI_CQ_FORMAT_MSG, waits: true };

fn text(e: Error) -> String {
    e.to_string()
}

impl Fabric {
    /// Opens an endpoint as the info says.
    ///
    /// # Safety
    /// `info` is an element of a list that this core has given out, and lives on meanwhile.
    pub(crate) unsafe fn open(core: &fi::Core, info: *mut fi::fi_info, name: &str) -> Result<Fabric, String> {
        // SAFETY: the caller's promise: all attributes are there.
        let (caps, most, mr_mode, format, protocol, domain_name, version) = unsafe {
            let (ep, domain) = ((*info).ep_attr, (*info).domain_attr);
            let of_domain = match (*domain).name.is_null() {
                true => String::new(),
                false => CStr::from_ptr((*domain).name).to_string_lossy().into_owned(),
            };
            let prefix = (*ep).msg_prefix_size;
            let most = if prefix == 0 { (*ep).max_msg_size } else { 0 };
            let version = (*(*info).fabric_attr).prov_version;
            let mr_mode = (*domain).mr_mode;
            ((*info).caps, most, mr_mode, (*info).addr_format, (*ep).protocol, of_domain, version)
        };
        if caps & fi::FI_MSG == 0 || most < link_api::Path::LEAST_FRAME + 1024 {
            return Err("it has no messages that are long enough".into());
        }
        let most = most.min(MESSAGE);
        // SAFETY: likewise.
        let remote = unsafe { Remote::new(core, info) };
        // The flag is of writes alone ([`Remote`]): by it the endpoint would have every send wait for its
        // delivery.
        // SAFETY: likewise, and this flag is the application's to ask for.
        unsafe { (*(*info).tx_attr).op_flags &= !fi::FI_DELIVERY_COMPLETE };
        // SAFETY: likewise.
        let objects = unsafe { Objects::open(core, info, QUEUE) }.map_err(text)?;
        let (receives, sends) =
            Receives::new(RECEIVES, most).zip(Sends::new(SENDS, most)).ok_or("no memory")?;
        let mut fabric = Fabric {
            objects: ManuallyDrop::new(objects),
            receives: ManuallyDrop::new(receives),
            sends: ManuallyDrop::new(sends),
            named: Named {
                most,
                name: name.to_owned(),
                detail: format!("{domain_name}, version {}.{}", version >> 16, version & 0xffff),
                dialect: (protocol, format),
                address: Vec::new(),
            },
            only_sent: 0,
            wait: None,
            did: Vec::new(),
            dead: None,
            remote,
            core: *core,
            pid: std::process::id(),
        };
        fabric.ready(mr_mode)?;
        Ok(fabric)
    }

    /// Registers memory, enables the endpoint, finds out its name, and posts receives.
    fn ready(&mut self, mr_mode: i32) -> Result<(), String> {
        let core = self.core;
        step(&core, "fi_enable", self.objects.ep.enable()).map_err(text)?;
        if mr_mode & fi::FI_MR_LOCAL != 0 {
            let Objects { ep, regions, domain, .. } = &mut *self.objects;
            let bound = Some(&*ep).filter(|_| mr_mode & fi::FI_MR_ENDPOINT != 0);
            for found in [self.receives.register(domain, bound), self.sends.register(domain, bound)] {
                regions.push(step(&core, "fi_mr_reg", found).map_err(text)?);
            }
        }
        self.named.address = step(&core, "fi_getname", self.objects.ep.name(MOST_ADDRESS)).map_err(text)?;
        self.wait = self.objects.cq.wait_fd();
        self.post();
        if self.receives.has_none_posted() {
            return Err(self.dead.take().unwrap_or_else(|| "no receive can be posted".into()));
        }
        Ok(())
    }
}
