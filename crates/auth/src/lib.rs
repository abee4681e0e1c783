//! Who a client is, and what it may do: SCRAM from both sides, credentials, users, roles and their privileges.
//!
//! Everything here is a pure function of what it is given: nonces, salts and documents come from outside, and nothing reads a
//! clock, a socket or a collection. The cryptography is RustCrypto's, and `ring`'s for signatures.
//!
//! - [`Mechanism`], [`Credential`]: what is kept of a password.
//! - [`Feigned`]: what is answered for users that there are not.
//! - [`server`], [`client`]: the two sides of a SCRAM conversation (RFC 5802, 7677).
//! - [`Action`], [`Resource`], [`Privileges`]: what may be done, where, and sets of both.
//! - [`RoleName`], [`builtin`], [`resolve`]: roles, those that every server has, and what a set of roles comes to.
//! - [`Keys`], [`link`], [`ClusterName`]: by what members of a deployment know each other.
//! - [`oidc`]: tokens that an identity provider has signed.
//! - [`Account`]: a user with everything that its roles come to.
#![forbid(unsafe_code)]

mod account;
mod action;
pub mod builtin;
mod certificate;
mod cluster_name;
mod feigned;
mod held;
mod keys;
pub mod link;
mod name;
pub mod oidc;
mod privilege;
mod resolve;
mod resource;
mod restriction;
mod scram;

pub use account::{Account, UserDocument, user_digest};
pub use action::{Action, ActionSet};
pub use certificate::{list_end, subject as certificate_subject, validity as certificate_validity};
pub use cluster_name::{ClusterAuthMode, ClusterName};
pub use feigned::Feigned;
pub use held::Held;
pub use keys::{Keys, MEMBER_USER};
pub use name::{RoleName, UserName};
pub use privilege::{Privilege, Privileges};
pub use resolve::{Resolved, Role, Roles, closes_circle, resolve};
pub use resource::{Resource, Target};
pub use restriction::{AddressRange, Restriction, RestrictionSet, met};
pub use scram::{Credential, Mechanism, client, legacy_digest, prepare, server};
