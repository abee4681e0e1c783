//! Commands that make, change, show and remove users and roles.

mod change_role;
mod change_user;
mod fields;
mod granted;
mod info;
mod merge;
mod remove;
mod rights;
mod spec;
mod written;

use crate::command::*;
use crate::op::Operation;
use crate::registered;

/// The commands of this group.
pub static COMMANDS: &[Entry<RunOnMongod>] = &[
    registered!(change_user::CreateUser<'_>),
    registered!(change_user::UpdateUser<'_>),
    registered!(remove::DropUser<'_>),
    registered!(remove::DropAllUsers),
    registered!(granted::GrantRolesToUser<'_>),
    registered!(granted::RevokeRolesFromUser<'_>),
    registered!(change_role::CreateRole<'_>),
    registered!(change_role::UpdateRole<'_>),
    registered!(remove::DropRole<'_>),
    registered!(remove::DropAllRoles),
    registered!(granted::GrantPrivilegesToRole<'_>),
    registered!(granted::RevokePrivilegesFromRole<'_>),
    registered!(granted::GrantRolesToRole<'_>),
    registered!(granted::RevokeRolesFromRole<'_>),
    registered!(info::UsersInfo<'_>),
    registered!(info::RolesInfo<'_>),
    registered!(info::GetUserCacheGeneration),
    registered!(info::InvalidateUserCache),
    registered!(merge::MergeAuthzCollections<'_>),
];
