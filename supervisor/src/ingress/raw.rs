//! Byte copy between a caller and the app.

use crate::conn::Identified;
use crate::copy;
use crate::decide::{Permit, until_revoked};
use crate::net::stream::Stream;

use super::Ingress;

/// Decides the stream as opaque, dials the app and copies until one side ends.
pub(super) async fn carry(ingress: &Ingress, mut conn: Identified, connect: Permit, stream: Stream) {
    let input = connect.input().opaque();
    let Ok(permit) = ingress.decider.decide(input, &mut conn.record) else {
        return stream.abort().await;
    };
    let mut cut = ingress.watch(&conn);
    let guest = match ingress.dialer.guest(&permit, &conn.spec).await {
        Ok(guest) => guest,
        Err(failure) => {
            conn.record.fail(failure.reason);
            return stream.abort().await;
        }
    };
    conn.record.write_open();
    let ended = until_revoked(&mut cut, &ingress.decider, &permit);
    let outcome = copy::both_ways(stream, Stream::Guest(Box::new(guest)), Vec::new(), ended).await;
    conn.record.bytes(outcome.from_caller, outcome.to_caller);
    conn.record.close(outcome.close);
}
