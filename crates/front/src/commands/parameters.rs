//! `getParameter` and `setParameter`.

use sheaf_auth::oidc::Providers;
use sheaf_bson::{RawDoc, Value};
use sheaf_errors::{Code, Result, bail};

use crate::args::{Args, Loose};
use crate::command::*;
use crate::generic::is_generic;
use crate::params::{PROVIDERS, Parameters};
use crate::reply::Reply;
use crate::request::Request;

/// `{getParameter: 1, name: 1, ...}`, `{getParameter: "*"}`, `{getParameter: {showDetails: true}, ...}`.
pub struct GetParameter<'a> {
    all: bool,
    details: bool,
    set_at: Option<&'a str>,
    names: Vec<&'a str>,
}

impl<'a> Command<'a, Request<'a>> for GetParameter<'a> {
    const NAME: &'static str = "getParameter";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "values of server parameters",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::GetParameter])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Control,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let (mut all, mut details, mut set_at) = (false, false, None);
        match args.own_value() {
            Value::String("*") => all = true,
            Value::Document(options) => {
                let mut options = Args::of_part("getParameter", options)?;
                details = options.optional::<Loose>("showDetails")?.is_some_and(|flag| flag.0);
                all = options.optional::<Loose>("allParameters")?.is_some_and(|flag| flag.0);
                set_at = options.optional::<&str>("setAt")?;
                options.finish()?;
                if let Some(other) = set_at.filter(|when| !matches!(*when, "startup" | "runtime")) {
                    bail!(
                        Code::BAD_VALUE,
                        "Enumeration value '{other}' for field 'getParameter.setAt' is not a valid value."
                    );
                }
            }
            _ => {}
        }
        // An old form; it means the same as "*".
        all |= args.optional::<Loose>("allParameters").ok().flatten().is_some_and(|b| b.0);
        let names = parameter_names(args.body());
        args.ignore_rest();
        if !all && names.is_empty() {
            bail!(Code::INVALID_OPTIONS, "no option found to get");
        }
        Ok(GetParameter { all, details, set_at, names })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let parameters = &op.front.parameters;
        let mut reply = Reply::ok();
        let mut found = 0;
        for (name, at_runtime, at_startup) in Parameters::names() {
            let wanted = match self.set_at {
                Some("runtime") => at_runtime,
                Some("startup") => at_startup,
                _ => true,
            };
            let wanted = wanted && !parameters.is_absent(name);
            if !wanted || !(self.all || self.names.contains(&name)) {
                continue;
            }
            found += 1;
            reply.fill(|doc| {
                if self.details {
                    let mut about = doc.document(name);
                    parameters.write_value(name, "value", &mut about);
                    about.append("settableAtRuntime", at_runtime);
                    about.append("settableAtStartup", at_startup);
                } else {
                    parameters.write_value(name, name, doc);
                }
            });
        }
        if found == 0 {
            bail!(Code::INVALID_OPTIONS, "no option found to get");
        }
        Ok(reply)
    }
}

/// `{setParameter: 1, name: value}`.
pub struct SetParameter<'a> {
    settings: Vec<(&'a str, Value<'a>)>,
}

impl<'a> Command<'a, Request<'a>> for SetParameter<'a> {
    const NAME: &'static str = "setParameter";
    const SPEC: Spec = Spec {
        aliases: &[],
        help: "sets a server parameter",
        access: Access::None,
        transaction: Transaction::Refused,
        secondary: Secondary::Always,
        maintenance: true,
        authentication: Authentication::Required,
        api_v1: false,
        admin_only: true,
        test_only: false,
        concerns: Concerns::NONE,
        privileges: Privileges::Needs(&[Privilege::on(Resource::Cluster, &[Action::SetParameter])]),
        spread: Spread::Router,
        counter: Counter::Command,
        threads: Threads::Data,
        ends_with_client: false,
    };

    fn parse(args: &mut Args<'a>) -> Result<Self> {
        let settings: Vec<_> = parameter_names(args.body())
            .into_iter()
            .filter_map(|name| args.body().get(name).map(|value| (name, value)))
            .collect();
        args.ignore_rest();
        if settings.is_empty() {
            bail!(Code::INVALID_OPTIONS, "no option found to set, use help:true to see options ");
        }
        Ok(SetParameter { settings })
    }

    fn run(self, op: &Request<'a>) -> Result<Reply> {
        let parameters = &op.front.parameters;
        let _turn = parameters.change();
        // All or nothing.
        self.settings.iter().try_for_each(|(name, value)| {
            parameters.check(name, *value)?;
            if *name == PROVIDERS
                && let Value::Array(list) = value
            {
                crate::oidc::check_files(&Providers::read(*list)?)?;
            }
            crate::tls::control::check_change(op.front, name, *value)
        })?;
        let mut reply = Reply::ok();
        for (at, (name, value)) in self.settings.iter().enumerate() {
            let was = parameters.set(name, *value)?;
            crate::tls::control::change(op.front, name, *value);
            if at == 0 {
                reply.fill(|doc| {
                    doc.append_all(was.as_raw());
                });
            }
            if *name == PROVIDERS {
                op.front.oidc.configure(Providers::parse(&parameters.text(name))?);
            }
            parameters.apply(name);
        }
        Ok(reply)
    }
}

/// All fields but the command's own and the generic ones name parameters.
fn parameter_names(body: RawDoc<'_>) -> Vec<&str> {
    body.iter().skip(1).filter(|f| !is_generic(f.key_bytes())).map(|f| f.key()).collect()
}
