//! Memory of a client that a device has mapped: what the client answers, and what is called when it takes the memory
//! back. One process, so one test at a time.
#![cfg(not(loom))]

#[path = "../../tests/link-kit/tests/support/client.rs"]
#[allow(dead_code, reason = "checks of links")]
mod support;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hmem::client::{Call, DeviceMemory, Mapped, Refused, Registered, any_serves_devices};
use hmem::{Kind, Span, registry};
use support::{Memory, Says};

const LEN: usize = 5 * 4096;

fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A device: whether it has the memory, and how often that was taken from it.
#[derive(Clone, Default)]
struct Device(Arc<(AtomicBool, AtomicU32)>);

impl Device {
    fn has(&self) -> bool {
        self.0.0.load(SeqCst)
    }

    fn revoked(&self) -> u32 {
        self.0.1.load(SeqCst)
    }

    fn map(&self, span: Span) -> Result<(Mapped, DeviceMemory), Refused> {
        let device = self.clone();
        let revoked = move || {
            device.0.0.store(false, SeqCst);
            device.0.1.fetch_add(1, SeqCst);
        };
        let found = DeviceMemory::map(span, true, Box::new(revoked));
        self.0.0.store(found.is_ok(), SeqCst);
        found
    }

    fn end(&self, memory: DeviceMemory) {
        self.0.0.store(false, SeqCst);
        drop(memory);
    }
}

fn end(memory: &Memory, client: Registered) {
    client.unregister().expect("a client");
    memory.check_end();
}

#[test]
fn a_device_gets_a_part_of_a_dmabuf_or_an_address() {
    let _alone = alone();
    let (memory, client) = Memory::register(LEN, Says::Dmabuf);
    let device = Device::default();
    for says in [Says::Dmabuf, Says::Export, Says::Address] {
        memory.says(says);
        let whole = device.map(memory.part(4096, 4 * 4096)).expect("memory");
        // Inside of what is mapped already.
        let part = device.map(memory.part(8192 + 5, 100)).expect("memory");
        let alias = memory.alias().addr() as usize;
        match (&whole.0, &part.0) {
            (Mapped::Dmabuf(_, first), Mapped::Dmabuf(_, second)) if says != Says::Address => {
                assert_eq!((*first, *second), (4096, 8192 + 5), "{says:?}");
            }
            (Mapped::Address(first), Mapped::Address(second)) if says == Says::Address => {
                assert_eq!((*first, *second), (alias + 4096, alias + 8192 + 5));
            }
            other => panic!("{says:?}: {other:?}"),
        }
        let (maps, ends) = memory.device_maps();
        assert_eq!(maps - ends, 1, "one mapping serves both");
        device.end(whole.1);
        device.end(part.1);
        memory.invalidate(&client);
        assert_eq!(device.revoked(), 0, "what the device has ended");
        memory.check_end();
    }
    end(&memory, client);
}

#[test]
fn what_a_client_takes_back_is_taken_from_devices_first_and_once() {
    let _alone = alone();
    for by_unregister in [false, true] {
        let (memory, client) = Memory::register(LEN, Says::Dmabuf);
        let (device, other) = (Device::default(), Device::default());
        let seen = [device.clone(), other.clone()];
        let wrong = Arc::new(AtomicU32::new(0));
        let count = wrong.clone();
        memory.at_unmap(move || {
            count.fetch_add(seen.iter().filter(|device| device.has()).count() as u32, SeqCst);
        });
        let (_, one) = device.map(memory.span()).expect("memory");
        let (_, two) = other.map(memory.part(100, 100)).expect("memory");
        if by_unregister {
            client.unregister().expect("a client");
        } else {
            memory.invalidate(&client);
        }
        assert_eq!((device.has(), other.has()), (false, false));
        assert_eq!((device.revoked(), other.revoked(), wrong.load(SeqCst)), (1, 1, 0));
        assert_eq!(memory.device_maps(), (1, 1));
        memory.check_end();
        // The ends of what is gone.
        drop((one, two));
        assert_eq!((device.revoked(), memory.device_maps()), (1, (1, 1)));
        if !by_unregister {
            // Mapped anew.
            let (_, again) = device.map(memory.span()).expect("memory");
            drop(again);
            end(&memory, client);
        }
    }
}

#[test]
fn each_refusal_and_each_answer_of_no_use_has_its_call() {
    let _alone = alone();
    let (memory, client) = Memory::register(LEN, Says::Dmabuf);
    let device = Device::default();
    let cases = [
        (Says::NotAcquired(libc::EACCES), Call::Acquire, libc::EACCES),
        (Says::NotPinned(libc::ENOSPC), Call::GetPages, libc::ENOSPC),
        (Says::NotMapped(libc::EREMOTEIO), Call::DmaMap, libc::EREMOTEIO),
        (Says::Empty, Call::Pieces, libc::EINVAL),
        (Says::Closed, Call::Pieces, libc::EBADF),
        (Says::NoDmabuf, Call::Pieces, libc::EPERM),
        (Says::Short, Call::Pieces, libc::EINVAL),
        (Says::TwoPieces, Call::Pieces, libc::EOPNOTSUPP),
        (Says::Opaque, Call::ExportDmabuf, libc::EOPNOTSUPP),
    ];
    for (says, call, errno) in cases {
        memory.says(says);
        let refused = device.map(memory.span()).map(drop).expect_err("a refusal");
        assert_eq!((refused.call, refused.errno), (call, errno), "{says:?}");
        memory.invalidate(&client);
        memory.check_end();
    }
    // It works for processes meanwhile, and for a device afterwards.
    memory.says(Says::Closed);
    assert!(device.map(memory.span()).is_err());
    let mut bytes = [1; 64];
    assert_eq!(hmem::read(&[memory.part(0, 64)], 0, &mut bytes), 64);
    memory.says(Says::Dmabuf);
    drop(device.map(memory.span()).expect("memory"));
    end(&memory, client);
}

/// One that is not for devices, and one whose dma_map has refused for good, while another one has memory for them.
#[test]
fn a_client_that_has_no_memory_for_devices_is_not_called_for_one() {
    let _alone = alone();
    let device = Device::default();
    let cases =
        [(Says::NotForDevices, Call::NotForDevices, 0), (Says::NotMapped(libc::EOPNOTSUPP), Call::DmaMap, 1)];
    for (says, call, calls) in cases {
        let (memory, client) = Memory::register(LEN, says);
        assert_eq!(any_serves_devices(), calls > 0, "{says:?}");
        let is_refused = || {
            for _ in 0..5 {
                let refused = device.map(memory.span()).map(drop).expect_err("a refusal");
                assert_eq!((refused.call, refused.errno), (call, libc::EOPNOTSUPP), "{says:?}");
            }
            assert_eq!((memory.asked(), memory.acquired()), (calls, calls), "callbacks of {says:?}");
        };
        is_refused();
        assert!(!any_serves_devices(), "{says:?}");
        let (other, second) = Memory::register(LEN, Says::Dmabuf);
        assert!(any_serves_devices());
        drop(device.map(other.span()).expect("memory"));
        is_refused();
        end(&other, second);
        assert!(!any_serves_devices());
        end(&memory, client);
        assert!(!any_serves_devices());
    }
    // Any other errno says nothing of the next memory.
    let (memory, client) = Memory::register(LEN, Says::NotMapped(libc::EBUSY));
    assert!(device.map(memory.span()).is_err() && device.map(memory.span()).is_err());
    assert!(any_serves_devices() && memory.asked() == 2);
    memory.says(Says::Dmabuf);
    drop(device.map(memory.span()).expect("memory"));
    end(&memory, client);
}

/// What a processor has is the same client's: no other one is called either.
#[test]
fn a_refusal_that_is_known_is_that_of_the_client_whose_memory_is_in_use() {
    let _alone = alone();
    let (other, second) = Memory::register(LEN, Says::Dmabuf);
    let (memory, client) = Memory::register(LEN, Says::NotForDevices);
    let pages = registry::get_pages(memory.span(), true).expect("a registration");
    let refused = Device::default().map(memory.part(7, 9)).map(drop).expect_err("a refusal");
    assert_eq!((refused.call, memory.acquired()), (Call::NotForDevices, 1));
    drop(pages);
    end(&memory, client);
    end(&other, second);
}

#[test]
fn memory_that_was_invalidated_while_registered_is_not_mapped() {
    let _alone = alone();
    let (memory, client) = Memory::register(LEN, Says::Dmabuf);
    let pages = registry::get_pages(memory.span(), true).expect("a registration");
    memory.invalidate(&client);
    let device = Device::default();
    let errno = |found: Result<(Mapped, DeviceMemory), Refused>| found.map(drop).map_err(|e| e.errno);
    assert_eq!(errno(device.map(memory.span())), Err(libc::ESTALE));
    drop(pages);
    drop(device.map(memory.span()).expect("memory"));
    end(&memory, client);
    // SAFETY: it is not accessed.
    let gone = unsafe { Span::new(memory.span().addr() as usize, LEN, Kind::Client) };
    assert_eq!(errno(device.map(gone)), Err(libc::EFAULT), "no client's");
}

/// Devices map, and end what they have mapped, while the client takes it back: nothing is revoked twice, nor behind its
/// end, and nothing is left.
#[test]
fn devices_and_invalidations_at_once_leave_nothing() {
    let _alone = alone();
    let (memory, client) = Memory::register(LEN, Says::Dmabuf);
    let (over, wrong, revoked) = (AtomicBool::new(false), Device::default(), Device::default());
    std::thread::scope(|scope| {
        let uses = || {
            for _ in 0..2_000 {
                let calls = Arc::new(AtomicU32::new(0));
                let (count, wrong, revoked) = (calls.clone(), wrong.clone(), revoked.clone());
                let revoke = move || {
                    revoked.0.1.fetch_add(1, SeqCst);
                    if count.fetch_add(1, SeqCst) > 0 {
                        wrong.0.1.fetch_add(1, SeqCst);
                    }
                };
                let Ok((_, held)) = DeviceMemory::map(memory.span(), true, Box::new(revoke)) else {
                    continue;
                };
                std::thread::yield_now();
                drop(held);
                // A call from here on is one too many.
                calls.fetch_add(1, SeqCst);
            }
        };
        let users = [scope.spawn(uses), scope.spawn(uses)];
        scope.spawn(|| {
            while !over.load(SeqCst) {
                memory.invalidate(&client);
            }
        });
        users.into_iter().for_each(|user| user.join().expect("a device"));
        over.store(true, SeqCst);
    });
    assert_eq!(wrong.revoked(), 0, "calls that are too many");
    assert!(revoked.revoked() > 0 && memory.device_maps().0 > 1, "nothing was taken back");
    end(&memory, client);
}
