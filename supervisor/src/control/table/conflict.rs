//! What only one endpoint can own: its address, and its guest.

use crate::control::order::Order;
use crate::control::why::Why;
use crate::state::endpoint::Backend;

/// What of `order` belongs to another pod's `owner` already. Hybrid sockets need no look: their path holds the pod uid.
pub(super) fn conflict(order: &Order, owner: &Order) -> Option<(Why, String)> {
    let held_by = format!("by {} until that is drained and removed", owner.key());
    let taken = order.spec.ips().find(|ip| owner.spec.ips().any(|other| other == *ip));
    if let Some(ip) = taken {
        return Some((Why::IpInUse, format!("{ip} is held {held_by}")));
    }
    match (&order.spec.backend, &owner.spec.backend) {
        (Backend::Vsock { cid }, Backend::Vsock { cid: other }) if cid == other => {
            Some((Why::CidInUse, format!("CID {cid} is held {held_by}")))
        }
        _ => None,
    }
}
