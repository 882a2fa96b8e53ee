//! The last step before a permitted request goes: it gets the credential that its permit carries. And one that carries none must
//! not hold the placeholder of one, whoever it goes to.
//!
//! Heads are searched for placeholders in any case. Bodies are where the pod may use a credential of that form, since nobody else
//! has told its app of any: they pass as they come, and break off at the first one.

use std::sync::Arc;
use std::time::SystemTime;

use http::Request;
use http::request::Parts;
use nova_policy::data::CredentialForm;
use tokio::sync::OwnedSemaphorePermit;

use super::Guest;
use crate::audit::Record;
use crate::conn::body::{ReadError, RequestBody};
use crate::copy::Forward;
use crate::credentials::{BODY_MAX, Body, Fault, Held, Injection, is_in_head};
use crate::decide::Permit;
use crate::reason::Reason;
use crate::state::endpoint::EndpointSpec;

/// Gives the head its credential, and says what is to be done with the body. The head is as it will be sent; nothing but
/// [`complete`] may change it afterwards.
///
/// # Errors
/// Why it must not go; the record has the finer reason.
pub(super) fn give(permit: &Permit, head: &mut Parts, record: &mut Record) -> Result<Body, Reason> {
    let body = match injection(permit) {
        Some(injection) => injection.into_head(head).map_err(|fault| refused(fault, record))?,
        None => match is_in_head(head) {
            None => Body::Pass,
            Some(name) => {
                // What an app makes up is no name of ours.
                if permit.policy().data().credentials.contains_key(&name) {
                    record.credential(&name);
                }
                return Err(refused(Fault::Placeholder, record));
            }
        },
    };
    let watches = body == Body::Pass && knows_placeholders(permit, record.endpoint());
    Ok(if watches { Body::Watch } else { body })
}

/// Whether the pod may use a credential whose place is a placeholder.
fn knows_placeholders(permit: &Permit, endpoint: &EndpointSpec) -> bool {
    let declared = &permit.policy().data().credentials;
    let form = |name: &String| declared.get(name).map(|declared| &declared.form);
    endpoint.credentials.iter().any(|name| matches!(form(name), Some(CredentialForm::Placeholder(_))))
}

/// Reads the body and gives it its credential, or the head the signature over it.
///
/// # Errors
/// Why it must not go; the record has the finer reason.
pub(super) async fn complete(
    guest: &Guest,
    permit: &Permit,
    forward: Forward,
    todo: Body,
    record: &mut Record,
) -> Result<Forward, Reason> {
    let Some(injection) = injection(permit).filter(|_| todo.is_read_first()) else {
        return Ok(forward);
    };
    let (mut head, body) = forward.request.into_parts();
    let (whole, place) = read(guest, body, record).await?;
    // Reading took its time.
    if !guest.egress.decider.still_allows(permit) {
        return Err(Reason::PolicyRevoked);
    }
    // A signature is of the moment in which it is sent.
    let injection = Injection { now: SystemTime::now(), ..injection };
    let whole = match todo {
        Body::Fill(kind) => injection.fill(&mut head, kind, whole),
        _ => injection.sign(&mut head, &whole).map(|()| whole.into()),
    };
    let whole = whole.map_err(|fault| refused(fault, record))?;
    let body = RequestBody::whole(whole, &forward.meter, place);
    Ok(Forward { request: Request::from_parts(head, body), ..forward })
}

/// What the answer must not say.
pub(super) fn secret_of(permit: &Permit) -> Option<Arc<Held>> {
    permit.credential().map(|(held, _)| Arc::clone(held))
}

fn injection(permit: &Permit) -> Option<Injection<'_>> {
    permit.credential().map(|(held, form)| Injection { held, form, now: SystemTime::now() })
}

/// The whole body. An endpoint holds a few of them at a time, so that one app cannot fill the node's memory; others wait.
async fn read(
    guest: &Guest,
    body: RequestBody,
    record: &mut Record,
) -> Result<(Vec<u8>, OwnedSemaphorePermit), Reason> {
    let places = Arc::clone(&guest.endpoint.whole_bodies);
    // Who holds a place must go on within this time; who waits for one waits no longer.
    let place = tokio::time::timeout(guest.spec.limits.body_time, places.acquire_owned()).await;
    let place = place.map_err(|_| Reason::BodyTimeout)?.map_err(|_| Reason::EndpointNotReady)?;
    match body.read(BODY_MAX).await {
        Ok(whole) => Ok((whole, place)),
        Err(ReadError::TooLong) => Err(refused(Fault::BodySize, record)),
        Err(ReadError::Late) => Err(Reason::BodyTimeout),
        Err(ReadError::Broken) => Err(Reason::Aborted),
    }
}

fn refused(fault: Fault, record: &mut Record) -> Reason {
    record.detail(fault.as_str());
    match fault {
        Fault::Placeholder => Reason::CredentialNotGranted,
        Fault::Form | Fault::BodySize | Fault::HeadSize | Fault::BodyEncoding | Fault::ChunkSignatures => {
            Reason::CredentialUnavailable
        }
    }
}
