//! Devices that have registered memory of a client (RDMA), and how it is taken from them.
//!
//! An import uses its registration for as long as it lasts. It ends by the device's own, which waits for a
//! thread that takes the memory from the device just now, or with the registration: the thread that ends that
//! has each import revoked first, and then waits as it does for operations.

use super::import::{Import, Revoke};
use super::registrations::{Callbacks, Held, Registrations};
use super::twins::forgets;

impl<C: Callbacks> Registrations<C> {
    /// A device has the memory from now on; the number of that. ESTALE: it was invalidated meanwhile.
    pub(super) fn import(&self, held: &Held<'_, C>, revoke: Revoke) -> Result<u64, i32> {
        let mut state = self.lock();
        let id = state.new_name();
        let r = state.registrations.get_mut(&held.used.of.name).ok_or(libc::ESTALE)?;
        if r.ended {
            return Err(libc::ESTALE);
        }
        r.using += 1;
        r.imports.push(Import::new(id, revoke));
        Ok(id)
    }

    /// The device has it no more. When this returns, nothing is being revoked by another thread either.
    pub(super) fn end_import(&self, name: u64, id: u64) {
        let mut state = self.lock();
        let ended = loop {
            let Some(r) = state.registrations.get_mut(&name) else { return };
            let Some(at) = r.imports.iter().position(|import| import.id() == id) else { return };
            if r.imports[at].is_idle() {
                let ended = r.imports.swap_remove(at);
                r.using -= 1;
                if r.using == 0 && r.ended {
                    self.ended.notify_all();
                }
                break ended;
            }
            if forgets!(self, EndsUnwaited) {
                return;
            }
            state = self.wait(state);
        };
        drop(state);
        // What it would have called is not to be dropped with the lock held.
        drop(ended);
    }

    /// Takes the memory of a registration, which this thread has marked as ended, from all devices.
    pub(super) fn revoke_imports(&self, name: u64) {
        /// It is over when it was revoked, or that has unwound.
        struct Over<'a, C: Callbacks>(&'a Registrations<C>, u64, u64);
        impl<C: Callbacks> Drop for Over<'_, C> {
            fn drop(&mut self) {
                let mut state = self.0.lock();
                if let Some(r) = state.registrations.get_mut(&self.1) {
                    r.imports.retain(|import| import.id() != self.2);
                    r.using -= 1;
                }
                self.0.ended.notify_all();
            }
        }
        loop {
            let mut state = self.lock();
            let Some(r) = state.registrations.get_mut(&name) else { return };
            let found = r.imports.iter_mut().find_map(|i| i.take().map(|revoke| (i.id(), revoke)));
            let Some((id, revoke)) = found else { return };
            drop(state);
            let over = Over(self, name, id);
            revoke();
            drop(over);
        }
    }
}
