//! Expressions as explain prints them.

use sheaf_bson::{Bump, RawDoc, Value, array_in, document_in};

use crate::expr::{Base, Expr, Node};
use crate::operator::Form;

impl Expr {
    /// The parsed expression as BSON: constants as `{$const: x}`, positional arguments always as arrays.
    pub fn serialize<'a>(&'a self, arena: &'a Bump) -> Value<'a> {
        match &self.0 {
            Node::Constant(constant) if constant.value().is_missing() => Value::String("$$REMOVE"),
            Node::Constant(constant) => {
                Value::Document(document_in(arena, |doc| _ = doc.append("$const", constant.value())))
            }
            Node::Path { base, path, name } => {
                let text = match (base, path.parts().is_empty()) {
                    (Base::Current, false) => format!("${}", path.dotted()),
                    (Base::Current, true) => "$$CURRENT".to_owned(),
                    (Base::Root, true) => "$$ROOT".to_owned(),
                    (Base::Root, false) => format!("$$ROOT.{}", path.dotted()),
                    (Base::Slot(_), true) => format!("$${}", name.as_deref().unwrap_or("")),
                    (Base::Slot(_), false) => {
                        format!("$${}.{}", name.as_deref().unwrap_or(""), path.dotted())
                    }
                };
                Value::String(arena.alloc_str(&text))
            }
            Node::Now => Value::String("$$NOW"),
            Node::Object(fields) => Value::Document(document_in(arena, |doc| {
                for (name, field) in fields.iter() {
                    doc.append(name, field.serialize(arena));
                }
            })),
            Node::Array(items) => Value::Array(serialize_all(items, arena)),
            Node::Call(call) => {
                let argument = match &call.op.form {
                    Form::Values(..) | Form::Lazy(..) => Value::Array(serialize_all(&call.args, arena)),
                    Form::Named(spec, _) => Value::Document(document_in(arena, |doc| {
                        for ((name, _), arg) in spec.fields.iter().zip(&call.args) {
                            if !arg.is_absent() {
                                doc.append(name, arg.serialize(arena));
                            }
                        }
                    })),
                    Form::Custom(..) => match call.op.serialize {
                        Some(serialize) => serialize(call, arena),
                        None => Value::Array(serialize_all(&call.args, arena)),
                    },
                };
                Value::Document(document_in(arena, |doc| _ = doc.append(call.op.name, argument)))
            }
            Node::Absent => Value::Missing,
        }
    }
}

fn serialize_all<'a>(items: &'a [Expr], arena: &'a Bump) -> RawDoc<'a> {
    array_in(arena, |out| {
        for item in items {
            out.push(item.serialize(arena));
        }
    })
}
