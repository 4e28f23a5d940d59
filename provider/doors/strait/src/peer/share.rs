//! Lists of publishers, and buffers that others join.

use std::sync::PoisonError;

use c_abi::guard;
use libc::{c_char, c_int};
use p2pmem::Request;
use p2pmem::orchestrator::{MOST_TOKENS, too_many_tokens};

use super::buffers::held;
use super::types::*;

/// The publishers that this user may have memory of, and how `client_count` devices reach them: those that
/// all of the devices reach first, the closest of these before others, host memory last. Without devices they
/// are in the order in which they came.
///
/// `publishers` has room for `*count` of them, each of `publishers->size` bytes. `*count` becomes the number
/// that there are, of which no more are written than there is room for.
///
/// 0; -ENODEV: a client is not there; -EINVAL.
///
/// # Safety
/// `clients` has `client_count` C strings; `count` is NULL or valid for a read and a write; `publishers` is
/// NULL where `*count` is 0, or points to that many times the bytes that its `size` says.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_list(
    opened: *mut strait_p2pmem,
    clients: *const *const c_char,
    client_count: usize,
    publishers: *mut strait_p2pmem_publisher,
    count: *mut usize,
) -> c_int {
    guard(|| {
        if count.is_null() {
            return Err(wrong("`count` is NULL"));
        }
        // SAFETY: the program's promise.
        let (home, clients, room) = unsafe { (home(opened)?, names(clients, client_count)?, count.read()) };
        let mut each = size_of::<strait_p2pmem_publisher>();
        if room > 0 {
            // SAFETY: as above.
            unsafe { has_size(publishers)? };
            // SAFETY: as above; it has that field.
            each = unsafe { (*publishers).size };
            if each % align_of::<strait_p2pmem_publisher>() != 0 || each > 1 << 16 {
                return Err(wrong(
                    "`size` of the first publisher is no size that the structure can have: set it to sizeof",
                ));
            }
        }
        let all = listed(home, &clients)?;
        for (n, publisher) in all.iter().take(room).enumerate() {
            // SAFETY: as above: there is room for that many, each of them aligned and at least that long.
            unsafe {
                publishers.byte_add(n * each).write(strait_p2pmem_publisher { size: each, ..*publisher })
            };
        }
        // SAFETY: as above.
        unsafe { count.write(all.len()) };
        Ok(())
    })
}

fn listed(home: &Home, clients: &[&str]) -> Result<Vec<strait_p2pmem_publisher>, c_int> {
    let mut made = Vec::new();
    let mut add = |(bytes, available, buffers): (u64, u64, u64),
                   (map, distance): (u32, u32),
                   flags: u32,
                   texts: [&str; 4]| {
        let mut one = strait_p2pmem_publisher {
            size: 0,
            bytes,
            available,
            buffers: buffers.try_into().unwrap_or(u32::MAX),
            flags,
            map,
            distance,
            name: [0; 72],
            kind: [0; 16],
            pci_function: [0; 32],
            why: [0; 496],
        };
        let [name, kind, function, why] = texts;
        fill(&mut one.name, name);
        fill(&mut one.kind, kind);
        fill(&mut one.pci_function, function);
        fill(&mut one.why, why);
        made.push(one);
    };
    let flags = |draining: bool, own: bool| {
        u32::from(draining) * STRAIT_P2PMEM_DRAINING + u32::from(own) * STRAIT_P2PMEM_OWN
    };
    match home {
        Home::Own(all) => {
            let clients =
                clients.iter().map(|name| errno(all.client(name))).collect::<Result<Vec<_>, _>>()?;
            for r in all.reached(&clients, Request::default().uid) {
                let l = &r.listed;
                let function = l.function.map(|f| f.to_string()).unwrap_or_default();
                let texts = [l.name.as_str(), l.kind, &function, &r.why];
                // What the process itself has published: no device's driver, and no host.
                let own = !matches!(l.kind, "sysfs" | "host");
                add(
                    (l.size, l.available, l.buffers as u64),
                    (r.map as u32, r.distance),
                    flags(l.draining, own),
                    texts,
                );
            }
        }
        Home::Daemon(session) => {
            for p in errno(session.with(|connection| connection.list(clients)))? {
                let texts = [p.name.as_str(), &p.kind, &p.function, &p.why];
                add(
                    (p.size, p.available, p.buffers),
                    (p.map.into(), p.distance),
                    flags(p.draining, p.own),
                    texts,
                );
            }
        }
    }
    Ok(made)
}

/// Whether a PCI function, by its address, has published memory: 1, 0, or -EINVAL.
///
/// # Safety
/// `pci_function` is a C string or NULL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_has_p2pmem(
    opened: *mut strait_p2pmem,
    pci_function: *const c_char,
) -> c_int {
    let mut has = false;
    let code = guard(|| {
        // SAFETY: the program's promise.
        let (home, function) = unsafe { (home(opened)?, not_null(text(pci_function)?, "`pci_function`")?) };
        let function = address(function)?;
        has = match home {
            Home::Own(all) => all.has_p2pmem(function),
            Home::Daemon(session) => {
                let all = errno(session.with(|connection| connection.list(&[])))?;
                all.iter().any(|p| p.function == function.to_string() && !p.draining)
            }
        };
        Ok(())
    });
    if code == 0 { has.into() } else { code }
}

/// A token by which a buffer is joined, as long as that is not freed: by another process of this user with a
/// daemon, else by another part of this process.
///
/// 0; -EOPNOTSUPP: of kind sysfs, of which each mapping is memory of its own; -ESTALE: it was revoked;
/// -EINVAL: it has 16 tokens.
///
/// # Safety
/// `buffer` is NULL or a buffer that was not freed; `token` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_get_token(
    buffer: *mut strait_p2pmem_buffer,
    token: *mut strait_p2pmem_token,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let held = unsafe { held(buffer)? };
        if token.is_null() {
            return Err(wrong("`token` is NULL"));
        }
        let bytes = match held {
            Held::Own { buffer, home, tokens } => {
                let mut tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner);
                if tokens.len() >= MOST_TOKENS {
                    return errno(Err(too_many_tokens()));
                }
                let made = errno(home.token(buffer))?;
                tokens.push(made);
                made
            }
            Held::Daemon(buffer) => errno(buffer.token())?,
        };
        // SAFETY: as above.
        unsafe { token.write(strait_p2pmem_token { bytes }) };
        Ok(())
    })
}

/// The buffer that a token is of: a buffer of its own, which is freed by itself.
///
/// 0; -ENOENT: its owner has freed it, or there never was one; -EPERM: it is another user's; -ESTALE: it was
/// revoked; -EINVAL.
///
/// # Safety
/// `token` is NULL or valid for a read; `buffer` is NULL or valid for a write.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn strait_p2pmem_join(
    opened: *mut strait_p2pmem,
    token: *const strait_p2pmem_token,
    buffer: *mut *mut strait_p2pmem_buffer,
) -> c_int {
    guard(|| {
        // SAFETY: the program's promise.
        let (home, token) = unsafe { (home(opened)?, not_null(token.as_ref(), "`token`")?.bytes) };
        if buffer.is_null() {
            return Err(wrong("`buffer` is NULL"));
        }
        let held = match home {
            Home::Own(all) => Held::own(errno(all.join(token))?, all),
            Home::Daemon(session) => {
                Held::Daemon(errno(session.take(|connection| connection.open_shared(token)))?)
            }
        };
        give(held, buffer);
        Ok(())
    })
}
