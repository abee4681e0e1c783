//! `usersInfo`, `rolesInfo` and `invalidateUserCache`.

use std::collections::HashSet;
use std::hash::Hash;

use sheaf_auth::{Account, Role, RoleName, Roles, Target, UserName, builtin, resolve};
use sheaf_bson::{DocBuf, DocWriter, MAX_DOCUMENT_SIZE, RawDoc, Value};
use sheaf_errors::{Code, Result, bail};
use sheaf_expr::ParseCx;
use sheaf_front::access::Rights;
use sheaf_meter::Held;
use sheaf_query::matcher::Matcher;

use super::fields::role_array;
use crate::accounts::{ROLES, Stored, USERS};
use crate::args::{Args, Loose, safe_i64};
use crate::command::*;
use crate::op::Operation;
use crate::reply::Reply;

/// Who is asked about.
enum Asked<N> {
    /// All of the command's database.
    OfDatabase,
    /// All.
    All,
    /// These.
    Named(Vec<N>),
}

/// Who is named more than once is meant once.
fn asked<N: Clone + Eq + Hash>(value: Value<'_>, read: impl Fn(Value<'_>) -> Option<N>) -> Result<Asked<N>> {
    let wrong = || sheaf_errors::Error::bad_value("User and role names must be either strings or objects");
    Ok(match value {
        // Any number that is one without its fraction.
        value if value.is_number() && safe_i64(value) == Some(1) => Asked::OfDatabase,
        Value::Document(doc) if doc.get("forAllDBs").is_some_and(|all| all.truthy()) => Asked::All,
        Value::Array(list) => {
            let (mut names, mut seen) = (Vec::new(), HashSet::new());
            for value in list.values() {
                sheaf_meter::tick(1)?;
                let name = read(value).ok_or_else(wrong)?;
                if seen.insert(name.clone()) {
                    names.push(name);
                }
            }
            Asked::Named(names)
        }
        value => Asked::Named(vec![read(value).ok_or_else(wrong)?]),
    })
}

/// A user of this database, or of that which is named. Unlike a role's name, a user's takes no other fields.
fn user(value: Value<'_>, db: &str) -> Option<UserName> {
    let only = |doc: &RawDoc<'_>| doc.iter().all(|field| matches!(field.key(), "user" | "db"));
    match value {
        Value::String(user) => Some(UserName::new(user, db)),
        value => value.as_doc().filter(only).and_then(UserName::read),
    }
}

/// A role of this database, or of that which is named.
fn role(value: Value<'_>, db: &str) -> Option<RoleName> {
    match value {
        Value::String(role) => Some(RoleName::new(role, db)),
        value => value.as_doc().and_then(RoleName::read),
    }
}

/// What is told, as far as it fits into a reply.
#[derive(Default)]
struct Told {
    list: Vec<DocBuf>,
    bytes: usize,
    held: Held,
}

impl Told {
    /// Errors: `BSONObjectTooLarge`, `ExceededMemoryLimit`, what the operation has to end with.
    fn push(&mut self, described: DocBuf) -> Result<()> {
        sheaf_meter::check()?;
        self.bytes += described.as_bytes().len();
        if self.bytes > MAX_DOCUMENT_SIZE {
            let size = self.bytes;
            let text = "is invalid. Size must be between 0 and 16793600(16MB)";
            bail!(Code::BSON_OBJECT_TOO_LARGE, "BSONObj size: {size} ({size:#X}) {text}");
        }
        // Here and in the reply.
        let bytes = 2 * self.bytes as u64;
        match self.held.bytes() {
            0 => self.held = sheaf_meter::reserve(bytes)?,
            _ => self.held.set(bytes)?,
        }
        self.list.push(described);
        Ok(())
    }

    fn reply(self, name: &str) -> Reply {
        Reply::ok().with_array(name, |list| {
            self.list.iter().for_each(|described| {
                list.push_raw_document(described.as_bytes());
            });
        })
    }
}

/// Whether somebody may see the users that he asks about. What cannot be read fails.
fn may_show_users(request: sheaf_front::command::Asked<'_>, rights: &Rights) -> bool {
    let Ok(command) = parsed::<UsersInfo<'_>>(request) else { return true };
    let may = |target: Target<'_>| rights.may(target, &[Action::ViewUser]);
    match asked(command.whom, |value| user(value, request.db)) {
        Ok(Asked::Named(names)) => names.iter().all(|name| {
            let own = rights.user() == Some(name) && !command.credentials;
            own || may(Target::Database(&name.db))
        }),
        Ok(Asked::All) => may(Target::Cluster),
        Ok(Asked::OfDatabase) | Err(_) => may(Target::Database(request.db)),
    }
}

/// Whether somebody may see the roles that he asks about. What cannot be read fails.
fn may_show_roles(request: sheaf_front::command::Asked<'_>, rights: &Rights) -> bool {
    let Ok(command) = parsed::<RolesInfo<'_>>(request) else { return true };
    let may = |target: Target<'_>| rights.may(target, &[Action::ViewRole]);
    match asked(command.which, |value| role(value, request.db)) {
        Ok(Asked::Named(names)) => {
            names.iter().all(|name| rights.have_role(name) || may(Target::Database(&name.db)))
        }
        Ok(Asked::All | Asked::OfDatabase) | Err(_) => may(Target::Database(request.db)),
    }
}

/// `{usersInfo: ...}`.
pub struct UsersInfo<'a> {
    whom: Value<'a>,
    credentials: bool,
    custom_data: bool,
    privileges: bool,
    restrictions: bool,
    filter: Option<RawDoc<'a>>,
}

impl<'a> Command<'a, Operation<'a>> for UsersInfo<'a> {
    const NAME: &'static str = "usersInfo";
    const SPEC: Spec = super::spec::shows(
        "describes users",
        Privileges::ByCommand(
            "viewUser on the database of each user, or on every database, unless it is the user itself",
            may_show_users,
        ),
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let whom = args.own_value();
        let mut flag = |name: &str, default: bool| -> Result<bool> {
            Ok(args.optional::<Loose>(name)?.map_or(default, |flag| flag.0))
        };
        Ok(UsersInfo {
            whom,
            credentials: flag("showCredentials", false)?,
            custom_data: flag("showCustomData", true)?,
            privileges: flag("showPrivileges", false)?,
            restrictions: flag("showAuthenticationRestrictions", false)?,
            filter: args.optional("filter")?,
        })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let view = op.engine().view()?;
        let stored = Stored(&view);
        let whom = asked(self.whom, |value| user(value, op.db()))?;
        let matcher = self.filter.map(|filter| Matcher::parse(filter, &mut ParseCx::new())).transpose()?;
        let mut told = Told::default();
        let mut tell = |user: RawDoc<'_>| -> Result<()> {
            let described = self.describe(user, &stored)?;
            match &matcher {
                Some(matcher) if !matcher.matches_doc(described.as_raw())? => sheaf_meter::check(),
                _ => told.push(described),
            }
        };
        match whom {
            Asked::Named(names) => {
                for name in names {
                    if let Some(user) = stored.document(USERS, &name.id())? {
                        tell(user.as_raw())?;
                    }
                }
            }
            _ if self.privileges || self.restrictions => bail!(
                Code::ILLEGAL_OPERATION,
                "Privilege or restriction details require exact-match usersInfo queries"
            ),
            whom => stored.each(USERS, &mut |user| {
                let own = UserName::read(user).is_some_and(|name| name.db == op.db());
                if own || matches!(whom, Asked::All) {
                    tell(user)?;
                }
                Ok(true)
            })?,
        }
        Ok(told.reply("users"))
    }
}

impl UsersInfo<'_> {
    fn describe(&self, user: RawDoc<'_>, stored: &Stored<'_>) -> Result<DocBuf> {
        let account = if self.privileges { Some(Account::read(user, stored)?) } else { None };
        Ok(DocBuf::build(|doc| {
            for field in user {
                let hidden = match field.key() {
                    "credentials" => !self.credentials,
                    "customData" => !self.custom_data,
                    "authenticationRestrictions" => !(self.restrictions || self.privileges),
                    _ => false,
                };
                if !hidden {
                    doc.append_element(field);
                }
            }
            if let Some(Value::Document(credentials)) = user.get("credentials") {
                let mut mechanisms = doc.array("mechanisms");
                for field in credentials {
                    mechanisms.push(if field.key() == "external" { "external" } else { field.key() });
                }
            }
            if let Some(account) = &account {
                doc.append("inheritedRoles", Value::Array(role_array(&account.resolved.roles).as_raw()));
                account.resolved.privileges.write(&mut doc.array("inheritedPrivileges"));
                let mut inherited = doc.array("inheritedAuthenticationRestrictions");
                for set in &account.resolved.restrictions {
                    set.write(&mut inherited.array());
                }
            }
        }))
    }
}

/// What `rolesInfo` tells of privileges.
#[derive(Clone, Copy, PartialEq)]
enum Show {
    No,
    Yes,
    /// In the form of one user that has all the roles.
    AsUser,
}

/// `{rolesInfo: ...}`.
pub struct RolesInfo<'a> {
    which: Value<'a>,
    privileges: Show,
    restrictions: bool,
    built_in: bool,
}

impl<'a> Command<'a, Operation<'a>> for RolesInfo<'a> {
    const NAME: &'static str = "rolesInfo";
    const SPEC: Spec = super::spec::shows(
        "describes roles",
        Privileges::ByCommand(
            "viewRole on the database of each role, unless it is one of the user's own",
            may_show_roles,
        ),
    );

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let which = args.own_value();
        let privileges = match args.value("showPrivileges") {
            Value::String("asUserFragment") => Show::AsUser,
            Value::String(other) => {
                bail!(
                    Code::BAD_VALUE,
                    "Failed to parse 'showPrivileges'. 'asUserFragment' is the only supported string value, found '{other}'"
                )
            }
            value if value.truthy() => Show::Yes,
            _ => Show::No,
        };
        let mut flag =
            |name: &str| -> Result<bool> { Ok(args.optional::<Loose>(name)?.is_some_and(|flag| flag.0)) };
        let restrictions = flag("showAuthenticationRestrictions")?;
        Ok(RolesInfo { which, privileges, restrictions, built_in: flag("showBuiltinRoles")? })
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        let view = op.engine().view()?;
        let stored = Stored(&view);
        let which = asked(self.which, |value| role(value, op.db()))?;
        let mut told = Told::default();
        let mut names = Vec::new();
        let mut tell = |role: Role| match self.privileges {
            Show::AsUser => {
                names.push(role.name);
                sheaf_meter::check()
            }
            _ => told.push(self.describe(&role, &stored)?),
        };
        match &which {
            Asked::Named(asked) => {
                for name in asked {
                    stored.role(name)?.map_or(Ok(()), &mut tell)?;
                }
            }
            Asked::All => bail!(Code::BAD_VALUE, "rolesInfo does not take 'forAllDBs'"),
            Asked::OfDatabase => {
                if self.built_in {
                    builtin::names(op.db()).iter().filter_map(builtin::find).try_for_each(&mut tell)?;
                }
                stored.each(ROLES, &mut |document| {
                    let role = Role::read(document)?;
                    if role.name.db == op.db() {
                        tell(role)?;
                    }
                    Ok(true)
                })?;
            }
        }
        if self.privileges == Show::AsUser {
            as_user(&which, &names, &stored)
        } else {
            Ok(told.reply("roles"))
        }
    }
}

impl RolesInfo<'_> {
    fn describe(&self, role: &Role, stored: &Stored<'_>) -> Result<DocBuf> {
        let is_built_in = builtin::is_built_in(&role.name);
        // Of what a built-in role is made is told nowhere.
        let includes = if is_built_in { &[] } else { role.roles.as_slice() };
        let inherited = resolve(includes, stored)?;
        let all = resolve(std::slice::from_ref(&role.name), stored)?;
        Ok(DocBuf::build(|doc| {
            if !is_built_in {
                doc.append("_id", &role.name.id());
            }
            role.name.write(doc);
            doc.append("isBuiltin", is_built_in);
            doc.append("roles", Value::Array(role_array(includes).as_raw()));
            doc.append("inheritedRoles", Value::Array(role_array(&inherited.roles).as_raw()));
            if self.privileges == Show::Yes {
                let own = if is_built_in { &all.privileges } else { &role.privileges };
                own.write(&mut doc.array("privileges"));
                all.privileges.write(&mut doc.array("inheritedPrivileges"));
            }
            if self.restrictions {
                restrictions(role, &all, doc);
            }
        }))
    }
}

fn restrictions(role: &Role, all: &sheaf_auth::Resolved, doc: &mut DocWriter<'_, Vec<u8>>) {
    let mut own = doc.array("authenticationRestrictions");
    if let Some(set) = &role.restrictions {
        set.write(&mut own);
    }
    drop(own);
    let mut inherited = doc.array("inheritedAuthenticationRestrictions");
    for set in &all.restrictions {
        set.write(&mut inherited.array());
    }
}

/// A user's document that has nothing but these roles.
fn as_user(which: &Asked<RoleName>, names: &[RoleName], stored: &Stored<'_>) -> Result<Reply> {
    if !matches!(which, Asked::Named(_)) {
        bail!(Code::ILLEGAL_OPERATION, "Cannot get user fragment for all roles in a database");
    }
    let all = resolve(names, stored)?;
    Ok(Reply::ok().with_document("userFragment", |doc| {
        doc.append("roles", Value::Array(role_array(names).as_raw()));
        doc.append("inheritedRoles", Value::Array(role_array(&all.roles).as_raw()));
        all.privileges.write(&mut doc.array("inheritedPrivileges"));
        let _ = doc.array("inheritedAuthenticationRestrictions");
    }))
}

/// `{_getUserCacheGeneration: 1}`: by which routers see that users or roles have changed.
pub struct GetUserCacheGeneration;

impl<'a> Command<'a, Operation<'a>> for GetUserCacheGeneration {
    const NAME: &'static str = "_getUserCacheGeneration";
    const SPEC: Spec = Spec {
        admin_only: true,
        spread: Spread::Refused,
        ..super::spec::shows(
            "a number that changes with users and roles",
            Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::Internal])]),
        )
    };

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(GetUserCacheGeneration)
    }

    fn run(self, op: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok().with("cacheGeneration", op.node().accounts.generation(op.engine())))
    }
}

/// `{invalidateUserCache: 1}`: what is kept of users is never old, so there is nothing to forget.
pub struct InvalidateUserCache;

impl<'a> Command<'a, Operation<'a>> for InvalidateUserCache {
    const NAME: &'static str = "invalidateUserCache";
    const SPEC: Spec = Spec {
        admin_only: true,
        ..super::spec::shows(
            "forgets what is kept of users in memory; here it is never old",
            Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::InvalidateUserCache])]),
        )
    };

    fn parse(_: &mut Args<'a>) -> Result<Self> {
        Ok(InvalidateUserCache)
    }

    fn run(self, _: &Operation<'a>) -> Result<Reply> {
        Ok(Reply::ok())
    }
}
